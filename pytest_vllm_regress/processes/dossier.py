"""What is known about an engine at the moment it missed a deadline or died: stacks, logs, resources. Bounded in size and time."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from ..util.masking import mask
from . import family
from .waits import Waits

STACKS_S = 1.8  # for all stacks together: with the grace of TERM a family has ended within 3 s of its deadline
MAX_PROCESSES = 24
MAX_STACK_CHARS = 4000
MAX_TAIL_BYTES = 6000
MAX_CHARS = 60000
MAX_ERROR_CHARS = 400
# What vLLM and torch put before each line: the process, the rank, level and time and place.
_PREFIX = re.compile(r"(?:\(\w+(?: pid=\d+)?\) )?(?:\[rank\d+\]:\s?)?(?:(?:ERROR|CRITICAL) \S+ \S+ (?:\[\S+\] )?)?")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception)(?:: .*)?|\S.{0,60}: error: .+")
_GAP = re.compile(
    r"vllm_regress_target\.sim\.compat\.SimulationGap: (.*?)(?:\. Run this on another device|$)", re.MULTILINE
)
_REFERS = re.compile(r"\babove\b|root cause")
_LATE: list[subprocess.Popen[str]] = []


@dataclasses.dataclass(frozen=True)
class Dossier:
    """What was known: ``stacks`` by process, ``logs`` as titled tails. ``str`` is the whole, bounded and masked."""

    title: str
    facts: tuple[str, ...]
    stacks: tuple[str, ...]
    logs: tuple[str, ...]

    @property
    def stack_text(self) -> str:
        """The processes alone, masked."""
        return mask("\n".join(self.stacks))

    def __str__(self) -> str:
        return mask("\n".join((f"== dossier: {self.title} ==", *self.facts, *self.stacks, *self.logs)))[:MAX_CHARS]


def compile_dossier(
    *,
    title: str,
    processes: Sequence[psutil.Process],
    logs: Sequence[Path],
    ray_dir: Path | None = None,
    facts: Sequence[str] = (),
    resume: bool = True,
) -> Dossier:
    """A dossier: what is known besides (``facts``), per process its command, state, memory, what it waits for and stack (through
    py-spy), then the tails of the logs.

    The processes are stopped first, as workers that spin for a peer which has died take every core from whoever looks; with ``resume``
    those that ran go on afterwards. Says what could not be got and why. Secrets in the controller's environment are masked.
    """
    _LATE[:] = [spy for spy in _LATE if spy.poll() is None]
    held = _suspend(processes)
    try:
        shown = list(processes)[:MAX_PROCESSES]
        with ThreadPoolExecutor(max_workers=4) as pool:
            until = time.monotonic() + STACKS_S
            stacks = list(pool.map(lambda process: _stack(process, until), shown))
        looked = Waits(shown, held)
        waits = [looked.describe(process) for process in shown]
        heads = [_headline(process, held.get(process.pid)) for process in shown]
    finally:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if resume and process.pid in held:
                    process.resume()
    found = [
        "\n".join(filter(None, (f"-- process {head}", wait, stack)))
        for head, wait, stack in zip(heads, waits, stacks, strict=True)
    ]
    if len(processes) > len(shown):
        found.append(f"-- {len(processes) - len(shown)} more processes are not shown")
    if not processes:
        found.append("-- no process of this engine was alive")
    tails = [(log.name, log_tail(log)) for log in [*logs, *(ray_logs(ray_dir) if ray_dir else [])]]
    return Dossier(title, tuple(facts), tuple(found), tuple(f"-- log {name}\n{tail}" for name, tail in tails if tail))


def _suspend(processes: Sequence[psutil.Process]) -> dict[int, str]:
    """Stop what is not stopped already; the states in which they were, by pid."""
    held: dict[int, str] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            state = process.status()
            if state != psutil.STATUS_STOPPED:
                process.suspend()
                held[process.pid] = state
    return held


def log_tail(path: Path, limit: int = MAX_TAIL_BYTES) -> str:
    """The last ``limit`` bytes of a log file, secrets masked, empty when there is none."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - limit))
            text = log.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""
    if size <= limit:
        return mask(text)
    whole = text.partition("\n")[2] or text  # a line cut in two could hold half a secret
    return f"[... {size - limit} bytes left out ...]\n{mask(whole)}"


def root_cause(text: str) -> str:
    """The first error that a log tells, in one line: of a traceback, a log record or a command line; empty when it tells none.

    One that only refers to another ("above", "for root cause") gives way to that; errors that Python ignored do not count.
    """
    lines = [_PREFIX.sub("", _COLOUR.sub("", line), count=1) for line in text.splitlines()]
    found, ignored = "", False
    for number, line in enumerate(lines):
        if line.startswith("Exception ignored in"):
            ignored = True
        elif _RAISED.fullmatch(line.rstrip()):
            more = itertools.takewhile(lambda each: each[:1].isspace() and each.strip(), lines[number + 1 :])
            told = " ".join(part.strip() for part in (line, *more))
            if not ignored and (not found or _REFERS.search(found)):
                found = found if found and _REFERS.search(told) else told
            ignored = False
    return found if len(found) <= MAX_ERROR_CHARS else f"{found[:MAX_ERROR_CHARS]}..."


def tells_nothing(error: str) -> bool:
    """The log named no error, or only one that refers to another."""
    return not error or _REFERS.search(error) is not None


def simulation_gap(text: str) -> str:
    """What the simulated device said that it does not have; empty when it said nothing of the kind."""
    found = _GAP.search(text)
    return found.group(1).strip() if found else ""


def py_spy() -> str | None:
    """The py-spy program that came with this interpreter, or one on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _stack(process: psutil.Process, until: float) -> str:
    program = py_spy()
    if program is None:
        return "(no stack: py-spy is not installed)"
    left = until - time.monotonic()
    if left <= 0:
        return f"(no stack: the {STACKS_S:g} s for all stacks were used up)"
    command = [
        program,
        "dump",
        "--pid",
        str(process.pid),
        "--nonblocking",
    ]  # a stopped process cannot be paused by ptrace
    try:
        spy = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return f"(no stack: {error})"
    try:
        out, said = spy.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        spy.kill()
        _LATE.append(
            spy
        )  # not waited for: it may be reading libraries of gigabytes from a slow disk, which even KILL does not interrupt
        return f"(no stack: py-spy gave none within {left:.1f} s)"
    if spy.returncode:
        return f"(no stack: {said.strip().splitlines()[-1] if said.strip() else 'py-spy failed'})"
    return out.strip()[:MAX_STACK_CHARS]


def _headline(process: psutil.Process, state: str | None) -> str:
    facts = []
    with contextlib.suppress(psutil.Error), process.oneshot():
        facts = [
            state or process.status(),
            f"{process.memory_info().rss >> 20} MiB",
            f"{process.num_threads()} threads",
            f"{sum(process.cpu_times()[:2]):.1f} s of CPU",
            f"parent {process.ppid()}",
        ]
    return f"{family.describe(process)} [{', '.join(facts) or 'gone'}]"


def ray_logs(ray_dir: Path, limit: int = 8) -> list[Path]:
    """Ray's own logs that say why a worker or a raylet failed, newest first."""
    wanted = ("raylet.err", "raylet.out", "gcs_server.err")
    found = [
        p
        for p in ray_dir.glob("session_*/logs/*")
        if p.is_file()
        and not p.parent.parent.is_symlink()
        and (p.name in wanted or p.name.startswith("worker-"))
        and p.stat().st_size
    ]
    return sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)[:limit]
