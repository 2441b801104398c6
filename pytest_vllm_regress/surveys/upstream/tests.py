"""Runs upstream's tests in a target interpreter on the simulated device. One pytest process runs
all files; after its death or a hang another one
goes on with the rest."""

from __future__ import annotations

import enum
import hashlib
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from ...engines.checkpoints.hub_cache import ensure_alias, kind_of
from ...engines.processes import process_tree
from ...engines.processes.agent import TARGET_SITE, Agent
from ...engines.target import Target
from ...environments.install import ensure_packages
from ...environments.installed import read_installed
from ...errors import UsageError
from ...util import codec
from ...util.files import open_own, peek
from ...util.paths import DATA, PACKAGE, writable_root
from ...util.rundir import RunDir
from ...util.supervised import Supervised
from .replacing import RECORD, REPLACED, STARTS_SERVERS
from .settings import DEVICE, DOSSIERS, ENVIRONMENT, PREFERS_V1, REUSE, hub_folder
from .tree import TestTree


class UpstreamOutcome(enum.StrEnum):
    """How one of upstream's tests ended. ``MEANING``: it asserts what a trained model says.
    ``MODEL``: it needs the weights, the tokenizer or
    the configuration of a model of the hub."""

    PASSED = "passed"
    FAILED = "failed"
    MEANING = "meaning"
    KERNEL = "needs a GPU"
    MODEL = "needs the real model"
    NETWORK = "needs the network"
    PACKAGE = "needs a package"
    UPSTREAM = "skipped by upstream"


NOT_SKIPPED = (UpstreamOutcome.PASSED, UpstreamOutcome.FAILED, UpstreamOutcome.MEANING)


@dataclass(frozen=True)
class UpstreamResult:
    """One test of a run, with one line of why it did not pass."""

    test: str
    outcome: UpstreamOutcome
    reason: str = ""
    seconds: float = 0.0

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


class UpstreamEvent(msgspec.Struct, frozen=True):
    """A line of the record of a run."""

    event: str
    test: str = ""
    outcome: str = "failed"
    reason: str = ""
    seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] = 0.0


@dataclass(frozen=True)
class ListedTest:
    """How a test that fails ends for a known reason, and the reason."""

    outcome: UpstreamOutcome
    why: str


FILE = DATA / "upstream_listed.toml"
EVERY_TEST = "*"
"""Stands for all tests of a file that have no entry of their own."""
_MAX_FILE = 1024 * 1024
_LISTED_NEEDS: Mapping[str, UpstreamOutcome] = {
    "meaning": UpstreamOutcome.MEANING,
    "model": UpstreamOutcome.MODEL,
    "gpu": UpstreamOutcome.KERNEL,
    "network": UpstreamOutcome.NETWORK,
    "fault": UpstreamOutcome.FAILED,
}
"""The outcome of a failed test by what its entry needs.

``fault`` is one of vLLM, of the test or of the simulated device: still a failure.
"""
_NEEDS: tuple[tuple[UpstreamOutcome, re.Pattern[str]], ...] = (
    (
        UpstreamOutcome.PACKAGE,
        re.compile(
            r"(?:ModuleNotFoundError|ImportError): (?:No module named|cannot import name|Please install)"
        ),
    ),
    (
        UpstreamOutcome.MODEL,
        re.compile(
            r"no stand-in: |GatedRepoError|SentenceTransformer\b"
            # Parsers refuse a tokenizer without their special tokens, as that of a stand-in is.
            r"|could not locate [^\n]*\btokens?\s+in the tokenizer|not found in the tokenizer"
            r"|No valid tokenizer file found in the repo"
        ),
    ),
    (
        UpstreamOutcome.KERNEL,
        re.compile(
            r"CUDA driver version is insufficient|libcuda\.so"
            r"|Torch not compiled with CUDA|No CUDA GPUs|Found no NVIDIA driver|torch\._C\b.*cuda|no kernel image|_C' object has no attribute"
            r"|'torch\.ops\._|namespace '_(?:vllm_|moe_)?[A-Za-z]*C|SimulationGap|CUDA_HOME|triton|NotImplementedError: .*(?:CUDA|backend)"
            r"|the simulated device of pytest-vllm-regress cannot"
            r"|num_gpus_available|Cannot access accelerator device|Expected a cuda device|requires? (?:a )?(?:GPU|CUDA)",
            re.I,
        ),
    ),
    (
        UpstreamOutcome.NETWORK,
        re.compile(
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled|Cannot send a request"
            r"|couldn't connect to 'https?|NameResolutionError|gaierror|Temporary failure in name resolution"
            r"|error downloading or loading vocab file"
            r"|Max retries exceeded with url|ClientConnectorDNSError|Network is unreachable"
            r"|ClientConnectorError|Cannot find an appropriate cached snapshot|Cannot connect to host (?!localhost|127)|HF_HUB_OFFLINE"
        ),
    ),
)
_LINE = 300


def outcome_of(outcome: str, reason: str) -> UpstreamOutcome:
    """Return what pytest's ``outcome`` with this ``reason`` means."""
    if outcome == "passed":
        return UpstreamOutcome.PASSED
    if outcome == "skipped":
        return UpstreamOutcome.UPSTREAM
    for kind, pattern in _NEEDS:
        if pattern.search(reason):
            return kind
    return UpstreamOutcome.FAILED


def read_results(
    record: str, listed: Mapping[str, ListedTest] = MappingProxyType({})
) -> tuple[UpstreamResult, ...]:
    """Return the results in the lines of a record. The first end of a test counts unless a later
    one is a failure.

    ``listed``: failures with known reasons by ``file::test``, without parameters, or ``file::*``. A
    test that was started and has no end is a failure. Raises ``UsageError`` for a line that is no
    event.
    """
    results: dict[str, UpstreamResult] = {}
    started: dict[str, None] = {}
    for line in record.splitlines():
        try:
            event = msgspec.json.decode(line, type=codec.built(UpstreamEvent))
        except msgspec.DecodeError:
            raise UsageError(
                f"the record of upstream's tests has a line that is no event: {line[:100]!r}"
            ) from None
        if event.event == "start":
            started[event.test] = None
        elif event.event == "end" and (event.test not in results or event.outcome == "failed"):
            results[event.test] = _result(event, listed)
    for test in started:
        if test not in results:
            reason = "the process ended during this test"
            results[test] = _result(UpstreamEvent("end", test, reason=reason), listed)
    return tuple(results.values())


def entry_for(test: str, listed: Mapping[str, ListedTest]) -> ListedTest | None:
    """Return the entry of a test, whatever its parameters, else that of its whole file."""
    name = test.partition("[")[0]
    return listed.get(name) or listed.get(f"{name.partition('::')[0]}::{EVERY_TEST}")


def _result(event: UpstreamEvent, listed: Mapping[str, ListedTest]) -> UpstreamResult:
    outcome = outcome_of(event.outcome, event.reason)
    entry = entry_for(event.test, listed)
    if outcome is UpstreamOutcome.FAILED and entry is not None:
        return UpstreamResult(event.test, entry.outcome, entry.why, event.seconds)
    return UpstreamResult(event.test, outcome, _one_reason(event.reason), event.seconds)


def _one_reason(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    if len(lines) > 1 and "Error" not in text:
        text = f"{lines[0]} ... {text}"
    return text if len(text) <= _LINE else f"{text[:_LINE]}..."


def counts(results: Iterable[UpstreamResult]) -> Counter[UpstreamOutcome]:
    """Return the number of tests for each outcome."""
    return Counter(result.outcome for result in results)


def share_passed(results: Iterable[UpstreamResult]) -> float | None:
    """Return the share of passed tests among those that were not skipped; None without any."""
    number = counts(results)
    total = sum(number[outcome] for outcome in NOT_SKIPPED)
    return number[UpstreamOutcome.PASSED] / total if total else None


def listed_tests(files: Iterable[str]) -> dict[str, ListedTest]:
    """Return the entries of these files, by ``file::test`` without parameters.

    Raises ``UsageError`` for a malformed entry.
    """
    document = codec.load(dict[str, dict[str, _Entry]], FILE, _MAX_FILE, what="a list of tests")
    return {
        f"{file}::{test}": ListedTest(_LISTED_NEEDS[entry.needs], entry.why)
        for file in files
        for test, entry in document.get(file, {}).items()
    }


class _Entry(codec.Document, frozen=True):
    needs: Literal["meaning", "model", "gpu", "network", "fault"]
    why: str


_PLUGINS = (
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "pytest_vllm_regress.surveys.upstream.replacing",
    "no:cacheprovider",
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
_FINISHED = '{"event": "finished"}'
"""What pytest records last."""


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
    ended: bool = True
    """False: the run ended before its last test."""

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
    request: UpstreamRequest,
    log: Path,
    progress: Callable[[str], None] = lambda line: None,
    *,
    record: Path | None = None,
) -> UpstreamRun:
    """Run the files and return the results. ``log`` gets pytest's output.

    ``record``: keeps each test when it has ended; what an interrupted run has begun is not run
    again. The caller removes it. Every process that the tests leave behind is ended.
    """
    begun, earlier = time.monotonic(), set(request.dossiers.glob("*"))
    ends = begun + (math.inf if request.limits.run_s is None else request.limits.run_s)
    missing = make_aliases(request.tree.hub_names(request.files))
    beside = _ensure_beside(request.target.python, progress)
    run = RunDir.create()
    try:
        record = (record or run.path / "record.jsonl").absolute()
        record.touch()
        drop_unfinished(record)
        paths = [beside, _link_own_package(run.path / "own")]
        ended = False
        for _ in range(_RESTARTS):
            ended = _pytest(request, run, record, paths, log, ends)
            if ended or time.monotonic() > ends:
                break
            progress("pytest ended before its last test; going on with the rest")
        results = read_results(peek(record, _MAX_RECORD), request.listed)
    finally:
        _end_all(run)
        run.remove()
    dossiers = tuple(sorted(set(request.dossiers.glob("*")) - earlier))
    return UpstreamRun(results, request.files, missing, time.monotonic() - begun, dossiers, ended)


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
    ends: float,
) -> bool:
    """Run one pytest process.

    Return whether it reached its end: it may die, or a test may miss its deadline.
    """
    earlier = len(peek(record, _MAX_RECORD))
    size, since, allowed = record.stat().st_size, time.monotonic(), request.limits.collect_s
    with open_own(log, "ab") as output:
        process = Supervised(
            _command(request, paths),
            env=_environment(request, run, record),
            cwd=request.tree.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while process.poll() is None:
            time.sleep(_POLL_S)
            now = time.monotonic()
            if record.stat().st_size != size:
                size, since = record.stat().st_size, now
                allowed = request.limits.test_s + _END_S
            if now > min(since + allowed, ends):
                return False
        return _FINISHED in peek(record, _MAX_RECORD)[earlier:].splitlines()
    finally:
        _end_all(run)
        process.end()
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


def drop_unfinished(record: Path) -> None:
    """Remove the tests without an end from the record of an interrupted run: nobody knows how they
    would have ended."""
    drop_torn_line(record)
    lines = record.read_bytes().splitlines(keepends=True)
    events = [msgspec.json.decode(line, type=codec.built(UpstreamEvent)) for line in lines]
    ended = {event.test for event in events if event.event == "end"}
    kept = (
        line
        for line, event in zip(lines, events, strict=True)
        if event.event == "end" or (event.event == "start" and event.test in ended)
    )
    record.write_bytes(b"".join(kept))


def _command(request: UpstreamRequest, paths: Sequence[Path]) -> list[str]:
    root = request.tree.root
    command = [str(request.target.python), "-c", _START, str(len(paths)), *map(str, paths)]
    command += [*request.files, "-c", str(root / "pyproject.toml"), f"--rootdir={root}"]
    command += [f"-p{plugin}" for plugin in _PLUGINS]
    command += ["-q", "-rN", "--tb=short", "--continue-on-collection-errors"]
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
    python, root = request.target.python, request.tree.root
    return {
        **variables,
        # The last folder has py-spy, for the stacks of a server that does not start.
        "PATH": os.pathsep.join(
            (
                str(python.parent),
                variables.get("PATH", os.defpath),
                str(Path(sys.executable).parent),
            )
        ),
        "PYTHONPATH": os.pathsep.join(map(str, (TARGET_SITE, root, root / _OWN_PACKAGES))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "VLLM_REGRESS_DEVICE": request.target.device,
        "VLLM_REGRESS_SIM_ENDING": _ENDING,
        PREFERS_V1: "1",
        "HF_HUB_CACHE": str(hub_folder()),
        "HF_DATASETS_OFFLINE": "1",
        ENVIRONMENT: str(python),
        REUSE: "0",
        DEVICE: request.target.device,
        RECORD: str(record),
        REPLACED: ",".join(request.replaced),
        STARTS_SERVERS: str(int(request.tree.mentions("RemoteOpenAIServer", request.files))),
        DOSSIERS: str(request.dossiers.absolute()),
    }


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
