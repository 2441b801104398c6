"""What became of upstream's tests: outcomes as values, the kinds of reasons for which a test cannot
run
here, and the tests that are known to fail on the simulated device, with what each of them needs."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from ...errors import UsageError
from ...util import codec
from ...util.paths import DATA


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
    (UpstreamOutcome.MODEL, re.compile(r"no stand-in: |GatedRepoError|SentenceTransformer\b")),
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
            event = msgspec.json.decode(line, type=UpstreamEvent)
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
