"""The releases of a distribution, as the user's package index has them, and as they were when this package was made."""

from __future__ import annotations

import datetime
import functools
import json
import subprocess
import sys

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ..errors import BuildError
from ..util.documents import parse_json
from ..util.masking import mask
from ..util.paths import DATA
from ..util.validation import shown
from ..util.versions import version_of
from . import uv
from .installed import run_isolated
from .locks import release_date, remembered
from .recipes import pinned

TIMEOUT_S = 120
RELEASES = DATA / "releases.json"
"""Written by docs/build_releases.py."""
# How pip is told of the index and of the way there; credentials may be among them.
_PIPS = (
    "PIP_*",
    "HTTP_*",
    "HTTPS_*",
    "http_*",
    "https_*",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_*",
    "REQUESTS_*",
    "XDG_*",
    "NETRC",
)


@functools.cache
def known_releases(package: str) -> tuple[Version, ...]:
    """The releases that there were when this package was made, oldest first; none of a package that environments are not made up from."""
    document: dict[str, list[str]] = json.loads(RELEASES.read_text(encoding="utf-8"))
    return tuple(map(Version, document.get(package, ())))


def releases(package: str, python: str = "3.11") -> tuple[Version, ...]:
    """All stable releases with a wheel for this platform and ``python``, oldest first; no pre-releases.

    Asks pip, which knows the user's index settings. Raises ``BuildError`` when there is none, or the index cannot be reached.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "index",
        "versions",
        package,
        "--json",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--only-binary=:all:", "--python-version", python]
    try:
        done = run_isolated(command, timeout_s=TIMEOUT_S, keep=_PIPS)
    except subprocess.TimeoutExpired:
        raise BuildError(f"the package index gave no list of the releases of {package} within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        words = mask(" ".join(line for line in done.stderr.splitlines() if "WARNING" not in line)[-600:])
        raise BuildError(
            f"the releases of {package} cannot be listed: {words or 'pip gave no reason'}. Check the name and pip's index settings"
        )
    return parse(done.stdout)


def newest_release(package: str, day: datetime.date) -> str | None:
    """The newest release of ``package`` that had a wheel for this platform by the end of ``day``; None when there was none."""

    def find() -> str:
        asking = ["--no-header", "--no-annotate", "--only-binary", ":all:", "--python-version", "3.11"]
        try:
            said = uv.run(
                ["pip", "compile", "-", "--quiet", "--no-deps", *asking, "--exclude-newer", day.isoformat()],
                doing=f"looking for the newest {package} of {day}",
                stdin=package,
            )
        except BuildError as error:
            if "cannot be resolved" in str(error):
                return ""
            raise
        return next((pin[1] for line in said.splitlines() if (pin := pinned(line))), "")

    if day >= datetime.datetime.now(datetime.UTC).date():  # may change yet
        return find() or None
    return remembered("newest-releases.json", f"{package} {day}", find) or None


def pin_of(package: str, version: str, dependency: str) -> str | None:
    """The version of ``dependency`` that a release was resolved with on the day after it; None for none."""

    def find() -> str:
        said = uv.run(
            [
                *("pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.11"),
                *("--exclude-newer", (release_date(package, version) + datetime.timedelta(days=1)).isoformat()),
            ],
            doing=f"looking which {dependency} {package} {version} asks for",
            stdin=f"{package}=={version}",
        )
        pins = dict(filter(None, map(pinned, said.splitlines())))
        return pins.get(dependency, "")

    return remembered("pins.json", f"{package}=={version} {dependency}", find) or None


def parse(answer: str) -> tuple[Version, ...]:
    """The stable versions in pip's JSON, oldest first."""
    try:
        listed = [str(each) for each in parse_json(answer)["versions"]]
    except (ValueError, TypeError, KeyError):
        raise BuildError(f"pip gave no list of releases, but {shown(answer)}") from None
    found = {version for each in listed if (version := version_of(each)) is not None}
    return tuple(sorted(version for version in found if not version.is_prerelease))


def between(found: tuple[Version, ...], wanted: SpecifierSet) -> tuple[Version, ...]:
    """Those that the specifier allows."""
    return tuple(version for version in found if wanted.contains(version))
