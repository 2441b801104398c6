"""What has no subschemas: what is drawn satisfies it as ``jsonschema`` reads it, and both ends of what it allows can be drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress.schemas import validator
from pytest_vllm_regress.schemas.leaves import FORMATS, leaf
from pytest_vllm_regress.schemas.scalars import FORMATS as DRAWN_FORMATS
from pytest_vllm_regress.schemas.scalars import SHAPES

QUIET = settings(
    deadline=None, database=None, derandomize=True, max_examples=50, suppress_health_check=list(HealthCheck)
)
NUMBERS = st.integers(-30, 30) | st.integers(-120, 120).map(lambda quarters: quarters / 4)
BOUNDS = st.dictionaries(
    st.sampled_from(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")), NUMBERS, max_size=3
)


@pytest.mark.parametrize("kind", ["integer", "number"])
@QUIET
@given(st.data())
def test_numbers_keep_to_their_bounds(kind: str, data: st.DataObject) -> None:
    """All that is drawn is valid; nothing is drawn only where nothing is valid."""
    schema: dict[str, Any] = {"type": kind, **data.draw(BOUNDS)}
    if data.draw(st.booleans()):
        schema["multipleOf"] = data.draw(st.sampled_from((2, 3, 5, 0.5, 0.25, 1.5)))
    judge, drawn = validator(schema), leaf(schema)
    if drawn.is_empty:
        assert not [quarters for quarters in range(-200, 201) if judge.is_valid(quarters / 4)]
    else:
        assert judge.is_valid(data.draw(drawn))


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({"type": "integer", "minimum": 3, "exclusiveMaximum": 6}, (3, 5)),
        ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 5.5}, (3, 5)),
        ({"type": "integer", "multipleOf": 5, "minimum": -7, "maximum": 12}, (-5, 10)),
        ({"type": "number", "minimum": 0.5, "maximum": 1.5}, (0.5, 1.5)),
        ({"type": "number", "multipleOf": 0.1, "minimum": 0.25, "exclusiveMaximum": 0.4}, (0.3, 0.3)),
        ({"type": "number", "minimum": 3, "maximum": 3}, (3, 3)),
    ],
    ids=str,
)
def test_both_ends_are_drawn(schema: dict[str, Any], ends: tuple[float, float]) -> None:
    least, most = (find(leaf(schema), lambda value, end=end: value == end, settings=QUIET) for end in ends)  # type: ignore[misc]
    assert (least, most) == ends


@pytest.mark.parametrize("schema", [{}, {"type": "number"}, {"type": "integer"}, {"type": "string"}], ids=str)
def test_what_is_not_bounded_goes_far(schema: dict[str, Any]) -> None:
    far = {"number": 1e6, "integer": 10**6}.get(schema.get("type", ""))
    if far is not None:
        assert find(leaf(schema), lambda value: value > far, settings=QUIET) > far
        assert find(leaf(schema), lambda value: value < -far, settings=QUIET) < -far
    elif schema:
        assert find(leaf(schema), lambda value: len(value) > 3 and not value.isascii(), settings=QUIET)
    else:
        for kind in (type(None), bool, int, str, list, dict):
            assert isinstance(find(leaf(schema), lambda value, kind=kind: isinstance(value, kind)), kind)  # type: ignore[misc]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.pattern)
def test_patterns_of_every_shape_and_their_lengths(shape: Any) -> None:
    schema = {"type": "string", "pattern": shape.pattern}
    judge = validator(schema)

    @QUIET
    @given(leaf(schema))
    def matching(value: str) -> None:
        assert judge.is_valid(value)

    matching()
    lengths = (shape.shortest, shape.shortest + 4 if shape.longest is None else shape.longest)
    for length in lengths if "(ab)" not in shape.pattern else (2,):
        bounded = leaf({**schema, "minLength": length, "maxLength": length})
        assert len(find(bounded, lambda value: True, settings=QUIET)) == length


@pytest.mark.parametrize("name", DRAWN_FORMATS)
def test_formats_are_what_their_checker_takes(name: str) -> None:
    schema = {"type": "string", "format": name}
    judge = validator(schema)

    @QUIET
    @given(leaf(schema))
    def valid(value: str) -> None:
        assert judge.is_valid(value)

    valid()
    assert find(leaf(schema), lambda value: len(value) > 4, settings=QUIET)


def test_every_format_that_schemas_are_drawn_with_has_values() -> None:
    assert set(DRAWN_FORMATS) <= set(FORMATS)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
        {"type": "number", "exclusiveMinimum": 2, "maximum": 2},
        {"type": "number", "multipleOf": 5, "minimum": 1, "maximum": 4},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "string", "pattern": "("},
        {"type": "unknown"},
        {"not": {}},
    ],
    ids=str,
)
def test_what_has_no_values_draws_none(schema: dict[str, Any]) -> None:
    assert leaf(schema).is_empty
