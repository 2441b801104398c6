"""Values of schemas without subschemas: all drawn values are valid for ``jsonschema``, and both
bounds can be drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress.schemas import validator
from pytest_vllm_regress.schemas.profile import TABLES
from pytest_vllm_regress.schemas.strategies import SHAPES
from pytest_vllm_regress.schemas.values import FORMATS, primitive_values

QUIET = settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=list(HealthCheck),
)
UNSHRUNK = settings(QUIET, phases=[Phase.generate])
"""For a search whose result need not be minimal: shrinking takes most of the time."""
FEW = settings(UNSHRUNK, max_examples=15)
NUMBERS = st.integers(-30, 30) | st.integers(-120, 120).map(lambda quarters: quarters / 4)
BOUNDS = st.dictionaries(
    st.sampled_from(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    NUMBERS,
    max_size=3,
)


@pytest.mark.parametrize("kind", ["integer", "number"])
@QUIET
@given(st.data())
def test_numbers_keep_to_their_bounds(kind: str, data: st.DataObject) -> None:
    """Every drawn value is valid. Nothing is drawn only if no value is valid."""
    schema: dict[str, Any] = {"type": kind, **data.draw(BOUNDS)}
    if data.draw(st.booleans()):
        schema["multipleOf"] = data.draw(st.sampled_from((2, 3, 5, 0.5, 0.25, 1.5)))
    checker, drawn = validator(schema), primitive_values(schema)
    if drawn.is_empty:
        assert not [quarters for quarters in range(-200, 201) if checker.is_valid(quarters / 4)]
    else:
        assert checker.is_valid(data.draw(drawn))


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({"type": "integer", "minimum": 3, "exclusiveMaximum": 6}, (3, 5)),
        ({"type": "integer", "exclusiveMinimum": 2.5, "maximum": 5.5}, (3, 5)),
        ({"type": "integer", "multipleOf": 5, "minimum": -7, "maximum": 12}, (-5, 10)),
        ({"type": "number", "minimum": 0.5, "maximum": 1.5}, (0.5, 1.5)),
        (
            {"type": "number", "multipleOf": 0.1, "minimum": 0.25, "exclusiveMaximum": 0.4},
            (0.3, 0.3),
        ),
        ({"type": "number", "minimum": 3, "maximum": 3}, (3, 3)),
    ],
    ids=str,
)
def test_both_bounds_are_drawn(schema: dict[str, Any], ends: tuple[float, float]) -> None:
    least, most = (
        find(primitive_values(schema), lambda value, end=end: value == end, settings=QUIET)  # type: ignore[misc]
        for end in ends
    )
    assert (least, most) == ends


@pytest.mark.parametrize(
    "schema", [{}, {"type": "number"}, {"type": "integer"}, {"type": "string"}], ids=str
)
def test_unbounded_values_may_be_large(schema: dict[str, Any]) -> None:
    far = {"number": 1e6, "integer": 10**6}.get(schema.get("type", ""))
    if far is not None:
        assert find(primitive_values(schema), lambda value: value > far, settings=QUIET) > far
        assert find(primitive_values(schema), lambda value: value < -far, settings=QUIET) < -far
    elif schema:
        assert find(
            primitive_values(schema),
            lambda value: len(value) > 3 and not value.isascii(),
            settings=QUIET,
        )
    else:
        for kind in (type(None), bool, int, str, list, dict):
            assert isinstance(
                find(primitive_values(schema), lambda value, kind=kind: isinstance(value, kind)),  # type: ignore[misc]
                kind,
            )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.pattern)
def test_patterns_are_matched_and_lengths_are_kept(shape: Any) -> None:
    schema = {"type": "string", "pattern": shape.pattern}
    checker = validator(schema)

    @FEW
    @given(primitive_values(schema))
    def matching(value: str) -> None:
        assert checker.is_valid(value)

    matching()
    lengths = (shape.shortest, shape.shortest + 4 if shape.longest is None else shape.longest)
    for length in lengths if "(ab)" not in shape.pattern else (2,):

        @FEW
        @given(primitive_values({**schema, "minLength": length, "maxLength": length}))
        def of_length(value: str) -> None:
            assert len(value) == length  # noqa: B023 (called in this round)

        of_length()


@pytest.mark.parametrize("name", TABLES["formats"])
def test_drawn_formats_pass_the_format_checker(name: str) -> None:
    schema = {"type": "string", "format": name}
    checker = validator(schema)

    @QUIET
    @given(primitive_values(schema))
    def valid(value: str) -> None:
        assert checker.is_valid(value)

    valid()
    assert find(primitive_values(schema), lambda value: len(value) > 4, settings=UNSHRUNK)


def test_every_drawn_format_has_values() -> None:
    assert set(TABLES["formats"]) <= set(FORMATS)


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
def test_unsatisfiable_schemas_draw_nothing(schema: dict[str, Any]) -> None:
    assert primitive_values(schema).is_empty
