"""Drawn schemas are valid, satisfiable, within their profile, reproducible by seed, and shrink
well."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.schemas import (
    PROFILES,
    Budget,
    Dialect,
    Feature,
    distribution,
    features,
    json_schemas,
    sample,
    valid_instances,
    validator,
)
from pytest_vllm_regress.schemas.features import children, definitions, walk

QUIET = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
HUNT = settings(QUIET, max_examples=3000)


def nodes(schema: Mapping[str, Any]) -> list[Any]:
    return [
        node
        for part in definitions(schema).values()
        for node in walk(part)
        if isinstance(node, dict)
    ]


def depth(schema: Any) -> int:
    container = isinstance(schema, dict) and schema.get("type") in ("array", "object")
    return int(container) + max((depth(child) for child in children(schema)), default=0)


@pytest.mark.parametrize("name", PROFILES)
def test_schemas_are_valid_and_stay_within_their_profile(name: str) -> None:
    for schema in sample(100, profile=name):
        assert features(schema) <= PROFILES[name].features, schema
        validator(schema).check_schema(schema)
        assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("name", PROFILES)
def test_every_feature_of_a_profile_is_drawn(name: str) -> None:
    """One or two hundred schemas have every feature; 1,500 are drawn before one counts as missing."""
    drawn: set[str] = set()
    for seed_value in range(15):
        for schema in sample(100, profile=name, budget=16, seed_value=seed_value):
            drawn |= features(schema)
        if drawn == PROFILES[name].features:
            break
    assert drawn == PROFILES[name].features


@pytest.mark.parametrize("name", PROFILES)
def test_a_reference_never_leads_to_itself_at_the_same_value(name: str) -> None:
    for schema in sample(150, profile=name, seed_value=1):
        simple: tuple[Any, ...] = (None, 1, "a", [], {})
        for value in simple:
            validator(schema).is_valid(value)  # no RecursionError


@pytest.mark.parametrize("name", PROFILES)
def test_every_schema_has_an_instance(name: str) -> None:
    for schema in sample(40, profile=name, seed_value=7):
        instances: list[Any] = []

        @settings(QUIET, max_examples=1, phases=[Phase.generate])
        @given(valid_instances(schema))
        def collect(value: Any) -> None:
            instances.append(value)  # noqa: B023 (called in this round)

        collect()
        assert instances, f"no instance of {json.dumps(schema)}"


@QUIET
@given(json_schemas("full", Budget(depth=2, nodes=5, width=2)))
def test_the_budget_is_kept(schema: dict[str, Any]) -> None:
    assert depth(schema) <= 2
    assert all(
        len(node.get("properties", {})) <= 3 for node in nodes(schema)
    )  # two and the tag of a oneOf


def test_each_dialect_has_its_own_tuples_and_definitions() -> None:
    for name, tuple_of, shared in (("full", dict, "$defs"), ("full-draft-07", list, "definitions")):
        drawn = sample(150, profile=name)
        assert {key for schema in drawn for key in ("$defs", "definitions") if key in schema} == {
            shared
        }
        tuples = [
            node for schema in drawn for node in nodes(schema) if Feature.TUPLE in features(node)
        ]
        old = [node for node in tuples if isinstance(node.get("items"), list)]
        assert old if tuple_of is list else not old
    assert PROFILES["full-draft-07"].dialect is Dialect.DRAFT7


FAULTS: dict[str, tuple[Callable[[Any], bool], Any]] = {
    "a string with a pattern and a maxLength": (
        lambda s: any("pattern" in n and "maxLength" in n for n in nodes(s)),
        {"type": "string", "pattern": "^[a-z]*$", "maxLength": 0},
    ),
    "null in an enum": (
        lambda s: any(None in n.get("enum", []) for n in nodes(s)),
        {"enum": [None]},
    ),
    "an optional property": (
        lambda s: Feature.OPTIONAL in features(s),
        {"type": "object", "properties": {"a": {"type": "boolean"}}},
    ),
    "multipleOf": (
        lambda s: any("multipleOf" in n for n in nodes(s)),
        {"type": "integer", "multipleOf": 2},
    ),
    "uniqueItems": (
        lambda s: any("uniqueItems" in n for n in nodes(s)),
        {"type": "array", "uniqueItems": True, "items": {"type": "boolean"}},
    ),
    "a tuple": (
        lambda s: any("prefixItems" in n for n in nodes(s)),
        {"type": "array", "prefixItems": [{"type": "boolean"}]},
    ),
    "anyOf inside an object": (
        lambda s: any(
            node.get("type") == "object"
            and any("anyOf" in below for below in walk(node) if isinstance(below, dict))
            for node in nodes(s)
        ),
        (
            {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "boolean"}, {"type": "boolean"}]},
            },
            {
                "type": "object",
                "properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "boolean"}]}},
                "required": ["a"],
            },
        ),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shrinks_to_its_minimum(fault: str) -> None:
    fails, minimum = FAULTS[fault]
    minima = minimum if isinstance(minimum, tuple) else (minimum,)
    assert find(json_schemas("full"), fails, settings=HUNT) in minima


def test_depth_shrinks_to_a_bare_chain() -> None:
    schema = find(json_schemas("full"), lambda s: depth(s) >= 3, settings=HUNT)
    for _ in range(3):
        inner = {"array": "items", "object": "additionalProperties"}[schema.pop("type")]
        assert set(schema) == {inner}
        schema = schema[inner]
    assert schema == {"type": "boolean"}


@pytest.mark.slow
def test_recursion_shrinks_to_one_reference() -> None:
    schema = find(json_schemas("full"), lambda s: "recursion" in features(s), settings=HUNT)
    assert len(nodes(schema)) <= 3, schema
    schema = find(
        json_schemas("lm-format-enforcer"), lambda s: "recursion" in features(s), settings=HUNT
    )
    assert len(nodes(schema)) <= 4, schema


def test_the_same_seed_draws_the_same_schemas_in_another_process() -> None:
    program = (
        "import json; from pytest_vllm_regress.schemas import sample; "
        "print(json.dumps(sample(60, profile='full', seed_value=5)))"
    )
    environment = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", program]
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(other.stdout) == sample(60, profile="full", seed_value=5)
    assert sample(60, profile="full", seed_value=6) != sample(60, profile="full", seed_value=5)


def test_unsatisfiable_schemas_are_drawn_only_on_request() -> None:
    unsatisfiable = []

    @settings(QUIET, max_examples=60, phases=[Phase.generate])
    @given(json_schemas("full", 5, satisfiable=False))
    def collect(schema: dict[str, Any]) -> None:
        validator(schema).check_schema(schema)
        unsatisfiable.append(valid_instances(schema).is_empty)

    collect()
    assert any(unsatisfiable)
    assert not all(unsatisfiable)


@pytest.mark.parametrize(
    "wrong", [lambda: json_schemas("xgrammer"), lambda: json_schemas(budget=0)]
)
def test_bad_arguments_name_what_is_allowed(wrong: Callable[[], Any]) -> None:
    with pytest.raises(
        UsageError, match=r"known: basic, lm-format-enforcer|nodes must be at least 1, got 0"
    ):
        wrong()


def test_a_distribution_prints_every_feature() -> None:
    text = str(distribution(40, profile="basic"))
    assert text.startswith("40 schemas")
    assert all(feature.value in text for feature in Feature)
