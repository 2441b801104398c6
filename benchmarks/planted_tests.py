"""Plugin of pytest that runs the tests of one collection many times: without a fault, and with each
of the faults of a plan.

benchmarks/planted.py writes it into the folder with upstream's tests, where it runs in the target
interpreter: importing vLLM and collecting takes longer than most tests. Each run is a forked
process. It gives the changed functions their other code; the file is replaced, too, for processes
that are started.

A test is run with a fault only if it passes without, and executed one of the changed functions
then (``reached`` has compiled calls into these).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import mmap
import os
import resource
import signal
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

PLAN = "planted_plan.json"
"""Name of the file in the root of the tests with the faults and the path for the results."""
_REACHED = "VLLM_REGRESS_REACHED"
_SOUND_S = (45.0, 240.0)
"""Seconds for one file without a fault: of the processor, and in all."""
_WALL_FACTOR = 5.0
_MAX_REASON = 300
ENDED, DIED, LATE = "ended", "died", "late"
"""How a forked process ended: LATE after its limit."""
_POLL_S = 0.05
_ATTEMPTS = 4
"""Most processes for one file without a fault, since a test may end its process."""
_freeze, _unfreeze = gc.freeze, gc.unfreeze
"""The originals, before the tests replace them. Frozen objects are not listed."""
_outcome: dict[str, str] = {}
"""Outcome and reason of the test that is running in this process."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    expected = hasattr(report, "wasxfail") and not isinstance(report.longrepr, tuple)
    outcome = "passed" if expected else report.outcome
    if _outcome.get("outcome") != "failed":
        _outcome["outcome"] = outcome
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr or "")
        _outcome["reason"] = " ".join(text.split())[:_MAX_REASON]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    plan = json.loads((session.config.rootpath / PLAN).read_text())
    runs = _Runs(session.items, Path(plan["sound"]), Path(plan["found"]), plan["limit_s"])
    for fault in plan["faults"]:
        for file in fault["files"]:
            runs.without_fault(file)
        runs.with_fault(fault)
    return True


class _Runs:
    """``sound``, ``found``: files for the results without a fault, and for those of the faults."""

    def __init__(
        self, items: Sequence[pytest.Item], sound: Path, found: Path, limit_s: float
    ) -> None:
        self._sound, self._found, self._limit_s = sound, found, limit_s
        self._by_file: dict[str, list[pytest.Item]] = {}
        for item in items:
            self._by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)

    def without_fault(self, file: str) -> None:
        """Run a file, unless that was done."""
        for _ in range(_ATTEMPTS):
            known = {line.get("test", line.get("file")): line for line in _lines(self._sound)}
            rest = [item for item in self._by_file.get(file, []) if item.nodeid not in known]
            if file in known:
                return
            if not rest:
                break
            end = _in_fork(functools.partial(self._record_all, rest), *_SOUND_S)
            if end == LATE:
                break
            if end == DIED:  # the test that was running has no result: leave it out
                done = {line.get("test") for line in _lines(self._sound)}
                running = next((item for item in rest if item.nodeid not in done), None)
                if running is not None:
                    _append(self._sound, test=running.nodeid, outcome="died", executed=[])
        _append(self._sound, file=file)

    def _record_all(self, items: Sequence[pytest.Item]) -> None:
        executed = Executed()
        for item in items:
            result = _run(item, items)
            _append(self._sound, test=item.nodeid, **result, executed=executed.taken())

    def with_fault(self, fault: dict[str, Any]) -> None:
        """Run the tests that can notice the fault until one fails."""
        wanted = set(fault["functions"])
        noticing = {
            line["test"]: line["seconds"]
            for line in _lines(self._sound)
            if line.get("outcome") == "passed" and wanted & set(line["executed"])
        }
        chosen = [
            [item for item in self._by_file.get(file, []) if item.nodeid in noticing]
            for file in fault["files"]
        ]
        chosen.sort(key=lambda items: sum(noticing[item.nodeid] for item in items))
        items = list(itertools.chain.from_iterable(chosen))
        with _file_replaced(fault["path"], fault["base"], fault["faulty"]):
            end = _in_fork(
                lambda: self._until_failure(fault, items),
                self._limit_s,
                self._limit_s * _WALL_FACTOR,
            )
        lines = [line for line in _lines(self._found) if line["fault"] == fault["id"]]
        last = lines[-1] if lines else {"outcome": end}
        if last["outcome"] == "start" and self._is_finding(end, last, noticing[last["test"]]):
            last |= {"outcome": "failed", "reason": f"the test does not end: {end}"}
            _append(self._found, **last)
        if last["outcome"] == "failed":
            again = [item for item in items if item.nodeid == last["test"]]
            _in_fork(lambda: self._confirm(fault, again), *_SOUND_S)
        load = round(os.getloadavg()[0], 1)
        _append(self._found, fault=fault["id"], outcome="end", end=end, tests=len(items), load=load)

    def _is_finding(self, end: str, start: dict[str, Any], seconds: float) -> bool:
        """Return whether a test ended its process, or went on for much longer than without the
        fault."""
        return end == DIED or self._limit_s - start["processor_s"] > max(20.0, 10 * seconds)

    def _until_failure(self, fault: dict[str, Any], items: Sequence[pytest.Item]) -> None:
        begun = time.monotonic()
        stock = Path(fault["base"]).read_text(encoding="utf-8")
        change_functions(fault["path"], stock, fault["faulty"])
        line: dict[str, Any] = {}

        def note(**more: object) -> None:
            times = {"seconds": time.monotonic() - begun, "processor_s": time.process_time()}
            rounded = {name: round(value, 2) for name, value in times.items()}
            _append(self._found, **{"fault": fault["id"], **line, **more, **rounded})

        for item in items:
            line = {"test": item.nodeid}
            note(outcome="start")
            result = _run(item, items)
            note(**result)
            if result["outcome"] == "failed":
                break

    def _confirm(self, fault: dict[str, Any], items: Sequence[pytest.Item]) -> None:
        for item in items:
            outcome = _run(item, items)["outcome"]
            _append(self._found, fault=fault["id"], outcome="without", without=outcome)


def _run(item: pytest.Item, items: Sequence[pytest.Item]) -> dict[str, Any]:
    """Run one of the tests that run in this process, and return how it ended."""
    _outcome.clear()
    begun, following = time.monotonic(), items.index(item) + 1
    item.config.hook.pytest_runtest_protocol(
        item=item, nextitem=items[following] if following < len(items) else None
    )
    seconds = round(time.monotonic() - begun, 2)
    return {"outcome": "skipped", "reason": "", "seconds": seconds, **_outcome}


class Executed:
    """The functions of the plan of ``reached`` that were executed since the last call."""

    def __init__(self) -> None:
        plan = json.loads(Path(os.environ[_REACHED]).read_text())
        self._record = Path(plan["record"])
        self._names = {
            number: f"{module}:{name}"
            for module, numbers in plan["functions"].items()
            for name, number in numbers.items()
        }
        with open(plan["epoch"], "r+b") as file:
            self._epoch = mmap.mmap(file.fileno(), 1)
        self._size = 0
        self.taken()

    def taken(self) -> list[str]:
        """Return the functions, and start a new record."""
        content = self._record.read_bytes() if self._record.exists() else b""
        numbers = {int(line) for line in content[self._size :].split()}
        self._size = len(content)
        self._epoch[0] = (self._epoch[0] + 1) % 256
        return sorted(self._names[number] for number in numbers)


def change_functions(path: str, stock: str, faulty: str) -> int:
    """Give each function of a file whose code differs between the sources the code of ``faulty``.
    Return how many functions were changed.

    Raises ``ValueError`` if there is none.
    """
    before, after = (_codes(compile(source, path, "exec")) for source in (stock, faulty))
    changed = {
        (old.co_qualname, old.co_firstlineno): new
        for old, new in zip(before, after, strict=True)
        if _content(old) != _content(new)
    }
    _unfreeze()
    objects = gc.get_objects()
    _freeze()
    count = 0
    for function in objects:
        if isinstance(function, types.FunctionType) and function.__code__.co_filename == path:
            code = function.__code__
            if new := changed.get((code.co_qualname, code.co_firstlineno)):
                function.__code__ = new
                count += 1
    if not count:
        raise ValueError(f"{path}: no function to change")
    return count


def _codes(code: types.CodeType) -> list[types.CodeType]:
    """Return all code in it, in the order of the source."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [code, *itertools.chain.from_iterable(map(_codes, inner))]


def _content(code: types.CodeType) -> tuple[Any, ...]:
    """Return the parts of a code object that decide what it does, without its line numbers."""
    constants = (
        _content(const) if isinstance(const, types.CodeType) else (type(const), repr(const))
        for const in code.co_consts
    )
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, *constants)


@contextlib.contextmanager
def _file_replaced(path: str, base: str, content: str) -> Iterator[None]:
    """Replace a file, a hard link to ``base``, during the block."""
    os.unlink(path)
    try:
        Path(path).write_text(content, encoding="utf-8")
        yield
    finally:
        os.unlink(path)
        os.link(base, path)


def _in_fork(action: Callable[[], None], processor_s: float, wall_s: float) -> str:
    """Run ``action`` in a forked process with these limits, and return how the process ended."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setpgid(0, 0)
            most = int(processor_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    ends = time.monotonic() + wall_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > ends:
            break
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return LATE
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU):
        return LATE
    return ENDED if status == 0 else DIED


def _lines(file: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, file.read_text().splitlines())) if file.exists() else []


def _append(place: Path, **line: object) -> None:
    with place.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
