"""Smaller engines: which engine is the smallest that fails, which the largest that works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.plugin import minimize
from pytest_vllm_regress.plugin.minimize import FEATURES, AttemptOutcome

FULL = EngineSpec.create(
    tensor_parallel_size=2,
    pipeline_parallel_size=2,
    data_parallel_size=2,
    tokenizer_pool_size=2,
    executor="mp",
    structured_output_backend="xgrammar",
)
FAILED = AttemptOutcome("fails", "as seen first")
NAMES = frozenset(FEATURES)


def walk(
    verdict: Callable[[frozenset[str]], str],
) -> tuple[minimize.Reduction, list[frozenset[str]]]:
    attempts: list[frozenset[str]] = []

    def attempt(left_out: frozenset[str]) -> AttemptOutcome:
        features = NAMES - left_out
        attempts.append(features)
        return AttemptOutcome(verdict(features), "")

    return minimize.walk(tuple(FEATURES), FAILED, attempt), attempts


def test_features_of_a_spec() -> None:
    assert minimize.features(EngineSpec(), schema=False) == ()
    assert minimize.features(EngineSpec(), schema=True) == ("schema",)
    assert minimize.features(FULL, schema=True) == tuple(FEATURES)
    parallel = EngineSpec.create(
        tensor_parallel_size=4, executor="ray", structured_output_backend="xgrammar"
    )
    assert minimize.features(parallel, schema=False) == ("tensor parallel", "executor")
    assert FULL.replace(**minimize.without(FEATURES)) == EngineSpec()


@given(st.sets(st.sampled_from(sorted(NAMES))).map(frozenset))
def test_the_features_that_a_failure_needs_are_found(culprits: frozenset[str]) -> None:
    """The failure appears exactly if all culprits are present."""
    reduction, attempts = walk(lambda features: "fails" if culprits <= features else "works")
    assert reduction.smallest == culprits
    assert (
        reduction.largest is None
        if not culprits
        else reduction.largest is not None and len(reduction.largest) == len(NAMES) - 1
    )
    assert len(attempts) == len(set(attempts)) <= 2 * len(FEATURES)


@given(
    st.dictionaries(
        st.sets(st.sampled_from(sorted(NAMES))).map(frozenset),
        st.sampled_from(["works", "fails", "cannot be: no"]),
    )
)
def test_only_what_was_run_is_reported(world: dict[frozenset[str], str]) -> None:
    """For any behaviour of the engines, both reported ends were tried, and no engine with one
    feature less still fails."""
    reduction, _ = walk(lambda features: world.get(features, "works"))
    assert reduction.tried[reduction.smallest].status == "fails"
    assert reduction.largest is None or reduction.tried[reduction.largest].status == "works"
    assert all(
        reduction.tried[reduction.smallest - {name}].status != "fails"
        for name in reduction.smallest
        if reduction.smallest - {name} in reduction.tried
    )
    assert minimize.describe(FULL, reduction).startswith("smallest engine that still fails: ")


def test_another_failure_is_neither_end() -> None:
    """A step to an impossible engine is skipped in both directions."""
    needed = "pipeline parallel"
    reduction, _ = walk(
        lambda features: (
            "cannot be: no pipelines"
            if needed not in features
            else "fails"
            if "tensor parallel" in features
            else "works"
        )
    )
    assert reduction.smallest == {"pipeline parallel", "tensor parallel"}
    assert reduction.largest == NAMES - {"tensor parallel"}


def test_the_report_names_engines_by_what_is_not_default() -> None:
    spec = EngineSpec.create(tensor_parallel_size=2, tokenizer_pool_size=2)
    features = minimize.features(spec, schema=True)
    reduction = minimize.walk(
        features,
        FAILED,
        lambda left_out: AttemptOutcome(
            "works" if "tensor parallel" in left_out else "fails", "seen"
        ),
    )
    text = minimize.describe(spec, reduction)
    assert text.splitlines()[:2] == [
        "smallest engine that still fails: tensor_parallel_size=2, requests without a schema",
        "largest engine that works: tokenizer_pool_size=2",
    ]
    assert "---- largest that works: tokenizer_pool_size=2 ----" in text


@pytest.mark.parametrize("feature", FEATURES)
def test_features_are_engine_spec_fields(feature: str) -> None:
    assert EngineSpec().replace(**FEATURES[feature]) == EngineSpec()
