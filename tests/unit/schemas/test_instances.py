"""Valid instances are valid; near misses are invalid and one change away.

Both also hold for hand-written schemas.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, find, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress.schemas import invalid_instances, json_schemas, valid_instances, validator

QUIET = settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=list(HealthCheck),
)
UNSHRUNK = settings(QUIET, max_examples=200, phases=[Phase.generate])

LINKED_LIST = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            },
            "required": ["value", "next"],
        }
    },
    "$ref": "#/$defs/node",
}


@QUIET
@given(st.data())
def test_drawn_schemas_have_valid_and_invalid_instances(data: st.DataObject) -> None:
    schema = data.draw(json_schemas("full"))
    assert validator(schema).is_valid(data.draw(valid_instances(schema)))
    assume(schema != {})
    near_miss = data.draw(invalid_instances(schema))
    assert not validator(schema).is_valid(near_miss.value)
    assert near_miss.change


@QUIET
@given(valid_instances(LINKED_LIST))
def test_recursive_schemas_have_finite_instances(value: Any) -> None:
    assert validator(LINKED_LIST).is_valid(value)


def test_recursion_is_followed() -> None:
    for length in (1, 2):
        assert find(
            valid_instances(LINKED_LIST),
            lambda v, length=length: _length(v) == length,  # type: ignore[misc]
            settings=UNSHRUNK,
        )


def _length(value: dict[str, Any] | None) -> int:
    return 0 if value is None else 1 + _length(value["next"])


def test_endless_recursion_has_no_instance() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert valid_instances(endless).is_empty


def test_without_extras_only_declared_properties_are_drawn() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    @QUIET
    @given(valid_instances(schema, extras=False))
    def only_declared(value: dict[str, Any]) -> None:
        assert set(value) <= {"a"}

    only_declared()
    assert find(valid_instances(schema), lambda v: not set(v) <= {"a"}, settings=QUIET)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "minimum": 3}, 2),
        ({"type": "string", "maxLength": 2, "minLength": 2}, "00x"),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 1, "minItems": 1}, []),
        ({"enum": ["a"]}, "ax"),
    ],
)
def test_near_misses_are_one_change_away(schema: dict[str, Any], expected: Any) -> None:
    near = find(
        invalid_instances(schema), lambda miss: type(miss.value) is type(expected), settings=QUIET
    )
    assert near.value == expected


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "array",
            "items": [{"type": "integer"}, {"type": "string"}],
            "additionalItems": False,
            "minItems": 2,
        },
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 2}]},
        {"type": ["string", "null"]},
        {"type": "string", "format": "date-time"},
        {"type": "object", "minProperties": 2},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
        {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "^a+$"}]},
        {
            "definitions": {"a/b": {"type": "null"}},
            "items": {"$ref": "#/definitions/a~1b"},
            "type": "array",
        },
    ],
)
def test_hand_written_schemas_have_valid_instances(schema: dict[str, Any]) -> None:
    value = find(
        valid_instances(schema), lambda _: True, settings=settings(QUIET, phases=[Phase.generate])
    )
    assert validator(schema).is_valid(value)
