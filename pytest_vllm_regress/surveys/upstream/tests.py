"""Runs upstream's tests in a target interpreter on the simulated device. One pytest process runs
all files; after its death or a hang another one
goes on with the rest."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engines.checkpoints.hub_cache import ensure_alias, kind_of
from ...engines.processes import process_tree
from ...engines.processes.agent import TARGET_SITE, Agent
from ...engines.target import Target
from ...environments.install import ensure_packages
from ...environments.installed import read_installed
from ...errors import UsageError
from ...util.files import peek
from ...util.paths import DATA, PACKAGE, writable_root
from ...util.rundir import RunDir
from .replacing import RECORD, REPLACED, STARTS_SERVERS
from .settings import DEVICE, DOSSIERS, ENVIRONMENT, PREFERS_V1, REUSE, hub_folder
from .tree import TestTree
from .triage import ListedTest, UpstreamOutcome, UpstreamResult, read_results, share_passed

_PLUGINS = (
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "pytest_vllm_regress.surveys.upstream.replacing",
)
_START = "import sys; n = int(sys.argv.pop(1)); sys.path += sys.argv[1:n + 1]; del sys.argv[1:n + 1]; import pytest; sys.exit(pytest.main())"
_BESIDE = DATA / "upstream_beside.txt"
"""Packages that upstream's tests need beside vLLM, in a folder at the end of the path: the
environment keeps its versions."""
_LEAST_PYTHON = (3, 11)
_OWN_PACKAGES = "tests/vllm_test_utils"
"""Folder of a package of upstream's own that its tests import by name."""
_ENDING = "0.0025"
"""Fraction of positions at which a simulated text ends: many tests ask for some ten tokens and
expect as many."""
_MAX_RECORD = 256 * 1024 * 1024
SCHEMA_VERSION = 1
_SHOWN = 20
"""Names in a line."""
_POLL_S = 0.5
_END_S = 60.0
"""Seconds that pytest may take from the last test to its end."""
_GRACE_S = 5.0
_RESTARTS = 25


@dataclass(frozen=True)
class RunLimits:
    """Seconds for one test with its fixtures, for collecting all files, and for the whole run
    (None: no limit)."""

    test_s: float = 300.0
    collect_s: float = 300.0
    run_s: float | None = None


@dataclass(frozen=True)
class UpstreamRun:
    """Results of a run, the files that were run, the names of the hub without a stand-in, and the
    dossiers of servers that did not start."""

    results: tuple[UpstreamResult, ...]
    files: tuple[str, ...]
    without_stand_in: tuple[str, ...]
    seconds: float
    dossiers: tuple[Path, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield each test that did not pass although it could run, then a summary."""
        for result in self.results:
            if result.outcome in (UpstreamOutcome.FAILED, UpstreamOutcome.MEANING):
                yield f"{result.outcome}: {result.test}: {result.reason}"
        share = share_passed(self.results)
        words = "-" if share is None else format(share, ".0%")
        reached = {result.file for result in self.results}
        yield f"{len(reached)} of {len(self.files)} files in {self.seconds:.0f} s; passed of the tests that were not skipped: {words}"
        if missed := [file for file in self.files if file not in reached]:
            yield f"without a result, because the run ended before or they have no tests here: {_some(missed)}"
        if self.dossiers:
            yield f"dossiers of servers that did not start: {_some([str(path) for path in self.dossiers])}"
        if self.without_stand_in:
            yield f"no stand-in for {_some(self.without_stand_in)}"

    def to_json(self, version: str, commit: str) -> dict[str, Any]:
        """Return the document of a run of the tests of ``commit`` on vLLM ``version``."""
        return {
            "schema": SCHEMA_VERSION,
            "vllm": version,
            "commit": commit,
            "files": self.files,
            "seconds": round(self.seconds, 1),
            "results": self.results,
        }


@dataclass(frozen=True)
class UpstreamRequest:
    """What to run: the tree and its files, in which environment. ``dossiers``: folder for those of
    servers that do not start. ``replaced``: classes
    of upstream's that ours replace (server, runner)."""

    tree: TestTree
    files: tuple[str, ...]
    target: Target
    dossiers: Path
    replaced: tuple[str, ...] = ("server",)
    limits: RunLimits = RunLimits()
    pytest_args: tuple[str, ...] = ()
    listed: Mapping[str, ListedTest] = field(default_factory=dict)


def run_tests(
    request: UpstreamRequest, log: Path, progress: Callable[[str], None] = lambda line: None
) -> UpstreamRun:
    """Run the files and return the results. ``log`` gets pytest's output.

    Every process that the tests leave behind is ended.
    """
    begun, earlier = time.monotonic(), set(request.dossiers.glob("*"))
    missing = make_aliases(request.tree.hub_names(request.files))
    beside = _ensure_beside(request.target.python, progress)
    run = RunDir.create()
    try:
        record = run.path / "record.jsonl"
        record.touch()
        paths = [beside, _link_own_package(run.path / "own")]
        for _ in range(_RESTARTS):
            if _pytest(request, run, record, paths, log, begun) or _out_of_time(
                request.limits, begun
            ):
                break
            progress("pytest ended before its last test; going on with the rest")
        results = read_results(peek(record, _MAX_RECORD), request.listed)
    finally:
        _end_all(run)
        run.remove()
    dossiers = tuple(sorted(set(request.dossiers.glob("*")) - earlier))
    return UpstreamRun(results, request.files, missing, time.monotonic() - begun, dossiers)


def make_aliases(names: Sequence[str]) -> tuple[str, ...]:
    """Make the names aliases of forged checkpoints. Return those without a stand-in."""
    for name in names:
        ensure_alias(name, hub_folder(), writable_root() / "checkpoints")
    return tuple(name for name in names if kind_of(name) is None)


def _ensure_beside(python: Path, progress: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder with ``_BESIDE`` for the interpreter ``python``, fetched on first use.
    Created atomically.

    Raises ``UsageError`` for a Python that cannot import our own package, and ``BuildError`` if
    something cannot be fetched.
    """
    version = tuple(map(int, read_installed(python).python.split(".")[:2]))
    if version < _LEAST_PYTHON:
        raise UsageError(
            f"{python} is Python {version[0]}.{version[1]}: upstream's tests need an environment with 3.11 or later"
        )
    packages = [line.partition(" #")[0] for line in _BESIDE.read_text().splitlines()]
    tag = f"{version[0]}.{version[1]}-{hashlib.sha256(repr(packages).encode()).hexdigest()[:10]}"
    return ensure_packages(
        Path("beside", tag),
        python,
        packages,
        "fetching pytest and clients for upstream's tests",
        progress,
    )


def _link_own_package(folder: Path) -> Path:
    """Return ``folder`` with our package in it, and nothing of what is installed beside that."""
    folder.mkdir()
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    return folder


def _pytest(
    request: UpstreamRequest,
    run: RunDir,
    record: Path,
    paths: Sequence[Path],
    log: Path,
    begun: float,
) -> bool:
    """Run one pytest process.

    Return whether it reached its end: it may die, or a test may miss its deadline.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            _command(request, paths),
            env=_environment(request, run, record),
            cwd=request.tree.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        watch = _Watch(record, request.limits)
        while process.poll() is None:
            time.sleep(_POLL_S)
            if watch.overdue() or _out_of_time(request.limits, begun):
                return False
        return watch.finished()
    finally:
        _end_all(run)
        process.wait()
        drop_torn_line(record)


def _end_all(run: RunDir) -> None:
    """End every process of a run and remove its shared memory."""
    processes = process_tree.with_tag(run.tag)
    segments = process_tree.shared_memory(processes)
    process_tree.terminate(processes, grace_s=_GRACE_S)
    for segment in segments:
        Path(segment).unlink(missing_ok=True)


def drop_torn_line(record: Path) -> None:
    """Remove what follows the last line break: a pytest that was killed while it wrote a line, to
    which the next one would append its first."""
    with record.open("rb+") as file:
        content = file.read(_MAX_RECORD)
        file.truncate(content.rfind(b"\n") + 1)


class _Watch:
    """Notices that the record stops growing for longer than the current step may take."""

    _FINISHED = '{"event": "finished"}'

    def __init__(self, record: Path, limits: RunLimits) -> None:
        self._record, self._limits = record, limits
        self._begun = len(peek(record, _MAX_RECORD))
        self._size, self._since = record.stat().st_size, time.monotonic()
        self._allowed = limits.collect_s

    def finished(self) -> bool:
        """Return whether pytest has recorded its own end since the watch began."""
        return self._FINISHED in peek(self._record, _MAX_RECORD)[self._begun :].splitlines()

    def overdue(self) -> bool:
        """Return whether the current step takes longer than it may."""
        size = self._record.stat().st_size
        if size != self._size:
            self._size, self._since = size, time.monotonic()
            self._allowed = self._limits.test_s + _END_S
        return time.monotonic() - self._since > self._allowed


def _out_of_time(limits: RunLimits, begun: float) -> bool:
    return limits.run_s is not None and time.monotonic() - begun > limits.run_s


def _command(request: UpstreamRequest, paths: Sequence[Path]) -> list[str]:
    command = [
        str(request.target.python),
        "-c",
        _START,
        str(len(paths)),
        *map(str, paths),
        *request.files,
    ]
    command += ["-c", str(request.tree.root / "pyproject.toml"), f"--rootdir={request.tree.root}"]
    command += [part for plugin in _PLUGINS for part in ("-p", plugin)]
    command += [
        "-p",
        "no:cacheprovider",
        "-q",
        "-rN",
        "--tb=short",
        "--continue-on-collection-errors",
    ]
    return [*command, f"--timeout={request.limits.test_s:g}", *request.pytest_args]


def _environment(request: UpstreamRequest, run: RunDir, record: Path) -> dict[str, str]:
    agent = Agent(
        request.target.python, run
    )  # not started: it knows the variables of target processes
    variables = {
        name: value
        for name, value in agent.child_environment().items()
        if not name.startswith("PYTEST_")
    }
    return {
        **variables,
        "PATH": os.pathsep.join(
            (str(request.target.python.parent), variables.get("PATH", os.defpath))
        ),
        "PYTHONPATH": os.pathsep.join(
            map(str, (TARGET_SITE, request.tree.root, request.tree.root / _OWN_PACKAGES))
        ),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "VLLM_REGRESS_DEVICE": request.target.device,
        "VLLM_REGRESS_SIM_ENDING": _ENDING,
        PREFERS_V1: "1",
        "HF_HUB_CACHE": str(hub_folder()),
        "HF_DATASETS_OFFLINE": "1",
        ENVIRONMENT: str(request.target.python),
        REUSE: "0",
        DEVICE: request.target.device,
        RECORD: str(record),
        REPLACED: ",".join(request.replaced),
        STARTS_SERVERS: str(int(request.tree.mentions("RemoteOpenAIServer", request.files))),
        DOSSIERS: str(request.dossiers.absolute()),
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )
