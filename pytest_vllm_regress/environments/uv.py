"""Run uv and explain its failures."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import platform
import re
import shlex
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import BuildError, BuildFailure, UsageError
from ..util.deadline import Deadline, wait_readable
from ..util.documents import parse_toml
from ..util.exclusive import Exclusive
from ..util.files import private_folder
from ..util.masking import mask, mask_log, without_secrets
from ..util.paths import has_home, writable_root
from ..util.rundir import scratch
from ..util.sizes import GIB

MAX_MEMORY = 16 * GIB
"""Limit for uv's memory in bytes: uv keeps the list of files of a package in memory, and an index
may never end it."""
SWEEP_CACHE = "sweep-uv"
"""Folder in the cache for the downloads of commands that limit their disk space."""
LIMIT_VARIABLE = "VLLM_REGRESS_CACHE_LIMIT"
"""GiB that environments and what was downloaded for them may take."""
TICK_S = 0.2
"""Seconds between checks for a cancelled build."""
Progress = Callable[[str], None]
logger = logging.getLogger("vllm_regress.environments")
_CHUNK = 1 << 16
_NOT_INHERITED = (
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "CONDA_PREFIX",
    "UV_PROJECT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
)
_FAILURES = {
    BuildFailure.DISK_FULL: (
        r"No space left on device|ENOSPC|Disk quota exceeded|File too large",
        "free some space, or `vllm-regress env prune`",
    ),
    BuildFailure.NOT_WRITABLE: (
        r"Permission denied|Read-only file system",
        "set VLLM_REGRESS_CACHE or UV_CACHE_DIR to a writable one",
    ),
    BuildFailure.INDEX_UNREACHABLE: (
        r"dns error|Could not connect|Connection refused|connect error|network|timed out|Failed to fetch|error sending request",
        "check the network and the index settings of uv",
    ),
    BuildFailure.OUT_OF_MEMORY: (
        r"memory allocation of \d+ bytes failed|MemoryError",
        f"the limit is {MAX_MEMORY / GIB:.0f} GiB: check whether the package index is the one that you mean: its answer may not end",
    ),
    BuildFailure.NO_PYTHON: (
        r"No interpreter found|No virtual environment or system environment",
        "install it, or set `python` in environments.toml",
    ),
    BuildFailure.UNRESOLVABLE: (
        r"No solution found|there is no version of|was not found in the package registry|unsatisfiable",
        "check versions and `exclude-newer` in environments.toml",
    ),
    BuildFailure.WRONG_HASH: (
        r"hash mismatch",
        "lock again with `vllm-regress env lock` after finding out why",
    ),
}
"""How each failure shows in uv's output, and what to do."""


_LOOKUP = threading.Lock()
"""Builds run in threads, and the first reading of sysconfig's variables in two threads gives one of
them an incomplete table (Python 3.11)."""
_cancelled: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


@contextlib.contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """End a build in the block with ``KeyboardInterrupt`` when ``event`` is set.

    For threads: only the main thread gets signals.
    """
    token = _cancelled.set(event)
    try:
        yield
    finally:
        _cancelled.reset(token)


def check_cancelled() -> None:
    """Raise ``KeyboardInterrupt`` if the build in this thread was cancelled."""
    event = _cancelled.get()
    if event is not None and event.is_set():
        raise KeyboardInterrupt


def program() -> str:
    """Return the uv that was installed with this package, or the one on the PATH."""
    from uv import find_uv_bin

    try:
        with _LOOKUP:
            return os.fsdecode(find_uv_bin())
    except FileNotFoundError:
        raise BuildError("uv is not installed: `pip install uv`") from None


def run(
    arguments: Sequence[str | Path],
    *,
    doing: str,
    progress: Progress = lambda line: None,
    stdin: str | None = None,
) -> str:
    """Run uv, pass each line of its output to ``progress``, and return the output.

    Runs in the root directory, so that uv ignores the settings of a project around the working
    directory. An interrupt, a cancelled build (``cancelled_by``) and the end of this process end uv
    with everything that it runs. Raises ``BuildError`` with the step, the
    kind of failure, uv's message and advice.
    """
    from ..util.supervised import NOT_EXECUTED, Supervised  # Linux only, as all that runs uv

    command = [program(), *map(str, arguments)]
    logger.info("%s: uv %s (in %s)", doing, mask(shlex.join(command[1:])), os.sep)
    with tempfile.TemporaryFile() as given:
        given.write((stdin or "").encode())
        given.seek(0)
        process = Supervised(
            command,
            max_data=MAX_MEMORY,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd=os.sep,
            umask=_umask(),
        )
    # Long enough for the listing of a large environment; an endless output does not fill the memory.
    lines: deque[str] = deque(maxlen=4000)
    try:
        for line in _lines(process):
            lines.append(line)
            if line and not line.lstrip().startswith(
                ("+ ", "- ")
            ):  # the list of installed packages
                progress(mask_log(line))
        status = process.wait()
    except BaseException:
        process.end()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    output = "\n".join(lines)
    if status == NOT_EXECUTED:
        raise BuildError(
            f"{doing}: {BuildFailure.NO_UV.value}: {mask(output)}. Check its permissions and what its "
            "disk was mounted with, or install it again: `pip install --force-reinstall uv`",
            BuildFailure.NO_UV,
        )
    if status:
        logger.info("%s: uv ended with status %s", doing, status)
        raise build_error(doing, output, status)
    return output


def resolve(
    requirements: str,
    *options: str | Path,
    doing: str,
    progress: Progress = lambda line: None,
) -> str:
    """Resolve requirements, one in a line, and return uv's output. Errors as in ``run``."""
    command = ["pip", "compile", "-", "--quiet", *options]
    return run(command, doing=doing, progress=progress, stdin=requirements)


def pylock(
    requirements: str,
    *options: str | Path,
    doing: str,
    progress: Progress = lambda line: None,
) -> tuple[list[dict[str, Any]], str]:
    """Like ``resolve``, but return the packages of a pylock, and the output."""
    with scratch() as folder:
        out = folder / "pylock.toml"
        form = ("--format", "pylock.toml", "-o", out)
        output = resolve(requirements, *form, *options, doing=doing, progress=progress)
        return parse_toml(out.read_text(encoding="utf-8"))["packages"], output


def compatible_files(package: Mapping[str, Any], python: str) -> list[dict[str, Any]]:
    """Return the files in a package's pylock entry for that Python and this machine: wheels, else
    the source."""
    wheels = [
        wheel for wheel in package.get("wheels", ()) if _is_compatible(file_name(wheel), python)
    ]
    return wheels or [package[key] for key in ("sdist", "archive") if key in package]


def _is_compatible(wheel: str, python: str) -> bool:
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename

    version = tuple(int(part) for part in python.split("."))
    tags = (
        *cpython_tags(version, platforms=["any"]),
        *compatible_tags(version, f"cp{python.replace('.', '')}", platforms=["any"]),
    )
    pairs = {(tag.interpreter, tag.abi) for tag in tags}
    for tag in parse_wheel_filename(wheel)[3]:
        platform_matches = tag.platform == "any" or (
            tag.platform.startswith(("manylinux", "linux_"))
            and tag.platform.endswith(f"_{platform.machine()}")
        )
        if platform_matches and (tag.interpreter, tag.abi) in pairs:
            return True
    return False


def file_name(entry: Mapping[str, Any]) -> str:
    """Return the name of a file in uv's pylock."""
    return (
        entry.get("name")
        or unquote(urlsplit(entry.get("url") or entry["path"]).path).rpartition("/")[2]
    )


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of the output as they come, without blanks at their ends.

    Raises ``KeyboardInterrupt`` when the build is cancelled.
    """
    assert process.stdout is not None
    no_deadline, rest = Deadline.after("build", math.inf), b""
    while True:
        check_cancelled()
        if not wait_readable(no_deadline, process.stdout, at_most_s=TICK_S):
            continue
        content = os.read(process.stdout.fileno(), _CHUNK)
        *lines, rest = (rest + content).split(b"\n")
        if not content:
            lines = [rest] if rest else []
        yield from (line.decode(errors="replace").rstrip() for line in lines)
        if not content:
            return


def _umask() -> int:
    """Return the umask, with the bits added that keep others from changing what uv installs."""
    line = re.search(r"(?m)^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text())
    return (int(line[1], 8) if line else 0o077) | 0o022


def has_wheel_folder() -> bool:
    """Return whether uv searches folders of wheels, which may contain local builds, besides the
    index."""
    return "UV_FIND_LINKS" in _environment()


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Let uv keep what it downloads in ``folder`` while the context is open, so that it can be
    counted and removed.

    Raises ``UsageError`` while another process does the same, because neither would count the
    other's environments against its disk limit.
    """
    private_folder(folder.parent)
    lock = Exclusive(folder, "the limit of disk space")
    try:
        lock.acquire()
    except UsageError as error:
        raise UsageError(
            f"{error}. Two limits would not count each other's environments. Or set VLLM_REGRESS_CACHE to another folder for this one"
        ) from None
    before = os.environ.get("UV_CACHE_DIR")
    os.environ["UV_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["UV_CACHE_DIR"]
        else:
            os.environ["UV_CACHE_DIR"] = before
        lock.release()


def own_downloads() -> Path | None:
    """Return the folder that uv uses as a cache for this project alone; None if it uses the user's,
    which other projects use, too.

    It has its own where the user limits the disk space, so that downloads count and can be removed,
    and where there is no home to keep the user's in.
    """
    if "UV_CACHE_DIR" in os.environ or (LIMIT_VARIABLE not in os.environ and has_home()):
        return None
    return writable_root() / "uv" / "cache"


def empty_cache() -> None:
    """Remove everything that uv has downloaded. Waits for other uv processes that use the cache.

    Raises ``BuildError``.
    """
    run(["cache", "clean", "--quiet"], doing="emptying uv's cache")


def build_error(doing: str, output: str, status: int) -> BuildError:
    """Return the error for a failure of uv, with the step, the kind of failure, advice and uv's
    message."""
    failure, what, advice = (
        BuildFailure.OTHER,
        f"uv ended with status {status}",
        "see uv's message",
    )
    for known, (pattern, what_to_do) in _FAILURES.items():
        if re.search(pattern, output, re.IGNORECASE):
            failure, what, advice = known, known.value, what_to_do
            break
    # uv puts the cause last; its explanation of a conflict may take twenty lines.
    reason = "\n".join(f"    {line}" for line in output.strip().splitlines()[-25:])
    return BuildError(mask(f"{doing}: {what}; {advice}. uv says:\n{reason}"), failure)


def _environment() -> dict[str, str]:
    environment = {
        name: value
        for name, value in without_secrets(os.environ).items()
        if name not in _NOT_INHERITED
    }
    # uv needs the credentials that these variables may hold.
    environment |= {
        name: value for name, value in os.environ.items() if name.startswith("UV_INDEX")
    }
    if "PIP_FIND_LINKS" in os.environ:  # use pip's folder of wheels, too
        environment.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"].replace(" ", ","))
    if (downloads := own_downloads()) is not None:
        environment["UV_CACHE_DIR"] = str(downloads)
    if not has_home():  # uv would create it
        environment.setdefault("UV_PYTHON_INSTALL_DIR", str(writable_root() / "uv" / "python"))
    return environment | {
        "UV_NO_CONFIG": "0",
        "UV_NO_PROGRESS": "1",
        "UV_LINK_MODE": environment.get("UV_LINK_MODE", "hardlink"),
    }
