"""Plan which cases run in which environments, and split long batches.

A batch is split by cases and never within a case: each part needs a pytest and a warm agent of its
own. Where there are few batches, and for cases that wait for documented hangs, a batch gets several
xdist workers instead.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ..cases.model import Case
from ..cases.proofs import proof
from ..cases.proofs.proof import AFFECTED, FIXED
from ..errors import UsageError
from .batch import HANGING, Batch

ENVIRONMENT_S = 60.0
"""Seconds that a batch takes beside its cases: to install the environment and import vLLM."""
UNKNOWN_S = 30.0
"""Seconds that a case without recorded durations is assumed to take."""
BATCH_S = (60.0, 600.0)
"""Least and greatest recorded seconds of a part of a split batch: long enough to be worth a start,
short enough to fill the slots evenly."""
Seconds = Callable[[Case, str], float]
"""Seconds that a case takes in an environment."""
Tests = Callable[[Case, str], int]
"""Number of tests that a case has in an environment."""


def plan_batches(
    cases: Sequence[Case], environments: Sequence[str] = (), *, all_evidence: bool = False
) -> tuple[Batch, ...]:
    """Return a batch for each environment: the named ones, else the first affected and the first
    fixed one (or all) of each case's evidence."""
    if environments:
        return tuple(Batch(name, tuple(cases), {}) for name in dict.fromkeys(environments))
    without_evidence = [
        case.id for case in cases if not case.evidence.affected and not case.evidence.fixed
    ]
    if without_evidence:
        raise UsageError(
            f"no evidence environments in {', '.join(without_evidence)}: name one with --env NAME, or in the case file"
        )
    by_environment: dict[str, dict[str, tuple[Case, str]]] = {}
    for role in (AFFECTED, FIXED):
        for case in cases:
            names = case.evidence.affected if role == AFFECTED else case.evidence.fixed
            for name in names if all_evidence else names[:1]:
                by_environment.setdefault(name, {})[case.id] = (case, role)
    return tuple(
        Batch(
            name,
            tuple(case for case, _ in pairs.values()),
            {case.id: role for case, role in pairs.values()},
        )
        for name, pairs in by_environment.items()
    )


def named_environments(
    cases: Sequence[Case], env: Sequence[str], releases: str | None = None
) -> list[str]:
    """Return the requested environments, oldest vLLM first. Without a request, return those of the
    cases' evidence.

    ``env``: names and paths, or one specifier: all environments of environments.toml with such a
    vLLM. ``releases``: a range of releases on the index, see ``package_and_range``.
    """
    from ..environments.names import resolve
    from ..environments.releases import package_and_range, releases_in

    if env and releases:
        raise UsageError("--env and --releases contradict each other: give one of them")
    if releases is not None:
        package, specifier = package_and_range(releases)
        return [f"{package}-{version}" for version in releases_in(package, specifier)]
    if not env:
        return sorted(
            {name for case in cases for name in (*case.evidence.affected, *case.evidence.fixed)},
            key=lambda name: _age(resolve(name).target),
        )
    ranges = [text for text in env if text.startswith(tuple("<>=!~"))]
    if not ranges:
        return list(env)
    if len(env) > 1:
        raise UsageError(f"--env {ranges[0]!r}: a range of versions stands alone, as one text")
    return _environments_with(ranges[0])


def _environments_with(versions: str) -> list[str]:
    from ..environments.recipes import find_file, load

    try:
        specifiers = SpecifierSet(versions)
    except InvalidSpecifier:
        raise UsageError(
            f"--env {versions!r}: not a PEP 440 specifier; allowed is for example '>=0.8,<0.12'"
        ) from None
    recipes = [
        recipe
        for recipe in load(find_file()).recipes.values()
        if specifiers.contains(recipe.target[1], prereleases=True)
    ]
    if not recipes:
        raise UsageError(
            f"--env {versions!r}: no environment of environments.toml has such a vLLM; `vllm-regress env list` shows them"
        )
    return [recipe.name for recipe in sorted(recipes, key=lambda recipe: _age(recipe.target))]


def _age(target: tuple[str, str]) -> tuple[object, str]:
    from packaging.version import Version

    return Version(target[1]), target[0]


def recorded_seconds(case: Case, environment: str) -> float:
    """Return how long the case took in the environment when it was proven; elsewhere the median of
    its evidence environments."""
    return _recorded(case, environment, lambda evidence: evidence.seconds) or UNKNOWN_S


def recorded_tests(case: Case, environment: str) -> int:
    """Return how many tests the case had when it was proven, as ``recorded_seconds``; at least 1."""
    return round(
        _recorded(
            case, environment, lambda evidence: sum(evidence.tests.values()) / evidence.trials
        )
        or 1
    )


def _recorded(
    case: Case, environment: str, value: Callable[[proof.EnvironmentEvidence], float]
) -> float:
    path = case.directory / proof.FILE
    evidence = _proven(path, path.stat().st_mtime_ns) if path.exists() else ()
    values = {each.environment: value(each) for each in evidence if value(each)}
    return values.get(environment) or (statistics.median(values.values()) if values else 0.0)


@functools.lru_cache(
    maxsize=1024
)  # dividing cases into shards asks for each of them a hundred times
def _proven(path: Path, modified_ns: int) -> tuple[proof.EnvironmentEvidence, ...]:
    return tuple(proof.read_proof(path).environments)


def split_batches(
    batches: Sequence[Batch], slots: int, seconds: Seconds = recorded_seconds
) -> Iterator[tuple[Batch, Batch]]:
    """Yield (batch, part) for parts that fill ``slots`` evenly.

    Where slots are machines, each that runs a part builds the environment.
    """
    total = sum(seconds(case, batch.environment) for batch in batches for case in batch.cases)
    length = min(max(total / max(2 * slots, 1), BATCH_S[0]), BATCH_S[1])
    return (
        (batch, part)
        for batch in batches
        for part in split_batch(batch, ENVIRONMENT_S + length, seconds)
    )


def set_hangs_apart(
    batches: Sequence[Batch], most_workers: int, tests: Tests = recorded_tests
) -> tuple[list[Batch], list[Batch]]:
    """Return batches of documented hangs, with up to ``most_workers`` workers each, and batches of
    what is left.

    A test that waits for a hang needs next to no processor, so the tests of such cases run side by
    side. Each worker imports vLLM, so a single test gets none of its own.
    """
    hanging, rest = [], []
    for batch in batches:
        apart = batch.only(batch.hanging_cases)
        workers = min(most_workers, sum(tests(case, batch.environment) for case in apart.cases))
        if workers < 2:
            rest.append(batch)
            continue
        hanging.append(replace(apart, part=HANGING, workers=str(workers)))
        left = batch.without(batch.hanging_cases)
        if left.cases:
            rest.append(left)
    return hanging, rest


def share_workers(
    batches: Sequence[Batch], workers: int, seconds: Seconds = recorded_seconds
) -> list[Batch]:
    """Return the batches with equal shares of ``workers``, as far as their cases take ``BATCH_S`` for each.

    A worker takes the next test when it has time. So it takes fewer starts than to split a batch
    into as many parts as fill the cores evenly.
    """
    shared = []
    for batch in batches:
        cases_s = sum(seconds(case, batch.environment) for case in batch.cases)
        useful = min(len(batch.cases), math.ceil(cases_s / BATCH_S[0]))
        count = min(workers // len(batches), useful)
        shared.append(replace(batch, workers=str(count)) if count > 1 else batch)
    return shared


def split_batch(batch: Batch, max_seconds: float, seconds: Seconds) -> list[Batch]:
    """Split the batch into as few parts of similar length as take at most ``max_seconds`` each,
    ``ENVIRONMENT_S`` included."""
    cases_s = batch_seconds(batch, seconds) - ENVIRONMENT_S
    count = min(
        len(batch.cases), max(1, math.ceil(cases_s / max(max_seconds - ENVIRONMENT_S, 1.0)))
    )
    parts: list[list[Case]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for case in sorted(batch.cases, key=lambda case: (-seconds(case, batch.environment), case.id)):
        least = min(range(count), key=lambda number: (loads[number], number))
        parts[least].append(case)
        loads[least] += seconds(case, batch.environment)
    return [
        replace(batch, cases=tuple(case for case in batch.cases if case in part), part=number)
        for number, part in enumerate(parts)
        if part
    ]


def batch_seconds(batch: Batch, seconds: Seconds) -> float:
    """Return how long the batch takes, with its environment."""
    return ENVIRONMENT_S + sum(seconds(case, batch.environment) for case in batch.cases)
