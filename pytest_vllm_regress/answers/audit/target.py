"""From what the user names to packages: an interpreter, an environment, a list or a lock file, a
release of vLLM, a pinned requirement, or standard input.

Nothing is started, except by ``read_interpreter``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ...cases.model import Case
from ...environments.installed import (
    VLLM,
    Package,
    is_environment,
    open_environment,
    open_interpreter,
    package,
    scan,
)
from ...environments.names import missing_release, unavailable_reason, versions_named_by
from ...environments.recipes import LOCKS, find_file, load
from ...environments.releases import known_releases
from ...environments.sources import parse_name
from ...errors import UsageError
from ...util.files import existing_path, expand_home, why_missing
from ...util.paths import shipped
from ...util.validation import format_value
from ...util.versions import is_version, requirement_of, specifiers_of, version_of
from .matching import Inventory, can_show
from .package_lists import MAX_BYTES, may_apply, parse_list, read_list

STDIN = "-"
ALLOWED = (
    "an environment's directory, a list of packages, a requirement such as vllm==0.8.4, or - for standard input; "
    "an interpreter with --env"
)
ALLOWED_SIDES = (
    "a release (0.8.4), an environment that has a lock (vllm-0.8.4), an environment's directory or its bin/python, a list of packages, "
    "a requirement such as vllm==0.8.4, or - for standard input"
)


def read_target(target: str, allowed: str = ALLOWED) -> Inventory:
    """Read an environment's directory (or its bin/python), a directory or list of packages, a
    pinned requirement, or standard input (``-``).

    ``allowed``: the valid targets, for the message about a missing file.

    ``vllm==0.8.4``, or ``0.8.4`` for short, is always the requirement: a project could have a file
    of that name, and answer for it. ``./vllm==0.8.4`` is the file.
    """
    if version_of(target):
        target = f"vllm=={target}"
    if target == STDIN:
        return parse_list(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    path = existing_path(target)
    if _is_exact(requirement_of(target)) or not os.path.exists(path):
        return _pinned(target, allowed)
    if path.parent.name == "bin" and path.name.startswith(("python", "pypy")):
        environment = path.absolute().parent.parent
        if is_environment(environment):
            return Inventory.of(open_environment(environment), target)
    if not path.is_dir():
        return read_list(path)
    if is_environment(path):
        return Inventory.of(open_environment(path.absolute()), target)
    packages = tuple(scan([path]))
    if not packages:
        raise UsageError(f"{target}: is not an environment and contains no packages (*.dist-info)")
    return Inventory(target, packages)


def read_interpreter(python: Path, cases: Sequence[Case]) -> Inventory:
    """Start the interpreter ``python`` (or that of an environment's directory) in isolated mode,
    ask for its path, and read its packages.

    Raises ``UsageError`` if it has the packages of no case, so that an audit would prove nothing.
    """
    inventory = Inventory.of(open_interpreter(expand_home(python).absolute()), str(python))
    if not can_show(inventory, cases):
        raise UsageError(
            f"{python} has no vLLM, so that the audit would prove nothing. Name what has it: an interpreter (--env PATH), "
            "a version (vllm==0.8.4), a lock file or a list of packages"
        )
    return inventory


def read_sides(before: str, after: str) -> tuple[Inventory, Inventory]:
    """Return the packages of both sides of a comparison.

    Raises ``UsageError`` if both are standard input, which can be read only once.
    """
    if before == after == STDIN:
        raise UsageError("only one side can be - (standard input): give the other one as a file")
    return read_side(before), read_side(after)


def read_side(target: str) -> Inventory:
    """Return the packages of a release (``0.8.4``), of an environment that has a lock
    (``vllm-0.8.4``), or of anything that ``audit`` accepts.

    A file or folder with the name of a release or environment is named ``./0.8.4``. Raises
    ``UsageError`` for a release that does not exist, and for the name of an environment that has no
    lock.
    """
    if version := version_of(target):
        if reason := missing_release("vllm", version.public, ask=False):
            raise UsageError(f"{target}: {reason}")
        return release(target, built_in_locks())
    if target == os.path.basename(target):
        for locks in (built_in_locks(), load(find_file()).locks):
            if (lock := locks / f"{target}.txt").is_file():
                return replace(read_list(lock), source=target)
    if os.path.exists(existing_path(target)):
        return read_target(target, ALLOWED_SIDES)
    if parse_name(target) is not None or versions_named_by(target):
        raise UsageError(
            unavailable_reason(target, ask=False)
            or f"{target}: this environment has no lock, so the versions in it are not known. "
            f"Give a release (0.8.4), a list of packages, or the interpreter that `vllm-regress env build {target}` prints"
        )
    return read_target(target, ALLOWED_SIDES)


def ends_of_range(inventory: Inventory) -> tuple[Inventory, ...]:
    """Return the inventory; if it leaves the version of vLLM to a range, one with the oldest known
    release in it and one with the newest, which is what an installation gets.

    Raises ``UsageError`` if no known release is in the range.
    """
    name = next((name for name in VLLM if name in inventory.ranges), "")
    if not name or not inventory.versions.keys().isdisjoint(VLLM):
        return (inventory,)
    text = inventory.ranges[name]
    specifiers = specifiers_of(text)
    releases = [] if specifiers is None else list(specifiers.filter(known_releases(name)))
    if not releases:
        raise UsageError(
            f"{inventory.source}: no known release of {name} is in {text}, so there is nothing to check"
        )
    ends = [("newest", releases[-1])]
    if text and releases[0] != releases[-1]:  # without a range the oldest is nobody's
        ends.append(("oldest", releases[0]))
    return tuple(
        replace(
            inventory,
            source=f"{inventory.source} ({name} {release}, the {end} that {text or 'no range'} allows)",
            packages=(
                *inventory.packages,
                *filter(None, [_package(inventory, name, str(release))]),
            ),
            unpinned={key: line for key, line in inventory.unpinned.items() if key != name},
        )
        for end, release in ends
    )


def _package(inventory: Inventory, name: str, version: str) -> Package | None:
    path = Path(inventory.source)
    return package(name, version, path if path.is_file() else None, 1)


def built_in_locks() -> Path:
    """Return the folder of the locks that come with the package.

    The locks of the project around the working directory must not say what a release has: the
    project may be what is audited.
    """
    return shipped(LOCKS)


def locked(folder: Path) -> dict[str, Path]:
    """Return the locks of plain releases in ``folder`` by version, oldest first."""
    locks = {}
    for path in folder.glob("vllm-*.txt"):
        if match := re.fullmatch(r"vllm-(\d+(?:\.\d+)*)", path.stem):
            locks[match[1]] = path
    return dict(sorted(locks.items(), key=lambda item: Version(item[0])))


def release(version: str, folder: Path) -> Inventory:
    """Return what ``pip install vllm==version`` installs, from the lock in ``folder``; without a
    lock, vLLM alone.

    Raises ``UsageError`` for an invalid version.
    """
    if not is_version(version):
        raise UsageError(f"--vllm {format_value(version)}: not a version. Give one like 0.8.4")
    public = Version(Version(version).public)
    lock = next((lock for name, lock in locked(folder).items() if Version(name) == public), None)
    inventory = (
        read_list(lock) if lock else parse_list(f"vllm=={version}\n".encode(), f"vllm {version}")
    )
    return replace(inventory, source=f"vllm {version}", release=version)


def _pinned(target: str, allowed: str) -> Inventory:
    """Return the packages of ``name==version``; for a release of vLLM with those of its lock, if
    there is one.

    Raises ``UsageError`` if it is not an exact version, or a marker excludes every machine that
    could run vLLM.
    """
    requirement = requirement_of(target)
    name = canonicalize_name(requirement.name) if requirement else ""
    pins = list(requirement.specifier) if requirement else []
    problem = ""
    if requirement is None or not _is_exact(requirement):
        problem = f"{why_missing(target)}. Give {allowed}"
        if name in VLLM or re.match(r"[\w.-]+(\[[\w.,-]*\])?\s*[=<>!~]", target):
            problem = "is neither a file nor an exact version. Give a version such as vllm==0.8.4"
    elif name == "vllm" and not is_version(pins[0].version):
        problem = f"{format_value(pins[0].version)} is not a version. Give one like vllm==0.8.4"
    elif not may_apply(requirement.marker):
        problem = "its marker holds for no Python on Linux, so there is nothing to check. Give a requirement that applies"
    if requirement is None or problem:
        raise UsageError(f"{target}: {problem}")
    version = pins[0].version
    if name == "vllm":
        return replace(release(version, built_in_locks()), source=target)
    return parse_list(f"{requirement.name}=={version}\n".encode(), target)


def _is_exact(requirement: Requirement | None) -> bool:
    pins = list(requirement.specifier) if requirement else []
    return len(pins) == 1 and pins[0].operator in ("==", "===") and "*" not in pins[0].version
