"""The releases of a distribution, as the user's package index has them."""

from __future__ import annotations

import json
import subprocess
import sys

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ..errors import BuildError
from ..util.masking import mask

TIMEOUT_S = 120


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise BuildError(f"the package index gave no list of the releases of {package} within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        words = mask(" ".join(line for line in done.stderr.splitlines() if "WARNING" not in line)[-600:])
        raise BuildError(
            f"the releases of {package} cannot be listed: {words or 'pip gave no reason'}. Check the name and pip's index settings"
        )
    return parse(done.stdout)


def parse(answer: str) -> tuple[Version, ...]:
    """The stable versions in pip's JSON, oldest first."""
    found = []
    for text in json.loads(answer)["versions"]:
        try:
            found.append(Version(text))
        except InvalidVersion:
            continue
    return tuple(sorted({version for version in found if not version.is_prerelease}))


def between(found: tuple[Version, ...], wanted: SpecifierSet) -> tuple[Version, ...]:
    """Those that the specifier allows."""
    return tuple(version for version in found if wanted.contains(version))
