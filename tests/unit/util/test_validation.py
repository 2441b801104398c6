"""A message about an invalid document names the key, the value and what is allowed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pytest_vllm_regress.util.validation import MAX_PROBLEMS, did_you_mean, format_value, problems

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 2, "description": "What it is called."},
        "kind": {"enum": ["hang", "crash"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 3},
        "table": {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]+$", "x-allowed": "lower-case letters"},
            "additionalProperties": {"type": ["boolean", "number"]},
        },
        "slug": {"pattern": "^[a-z]$", "x-allowed": "one letter"},
        "note": {"type": "string", "minLength": 1},
        "box": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "required": ["size"],
                    "properties": {"size": {"type": "integer"}},
                },
            ]
        },
    },
}
GOOD = {
    "name": "ab",
    "kind": "hang",
    "count": 3,
    "tags": ["x", "y"],
    "table": {"a": True},
    "slug": "a",
}


def check(document: object) -> list[str]:
    return problems(document, SCHEMA)


def test_a_valid_document_has_no_problems() -> None:
    assert check(GOOD) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"kindd": 1},
            "kindd: unknown key. Did you mean kind? Allowed here: name, kind, count, tags, table, slug, note, box",
        ),
        ({"kind": "hangs"}, "kind = 'hangs': allowed: hang, crash. Did you mean hang?"),
        ({"count": "3"}, "count = '3': allowed is a whole number"),
        ({"count": 0}, "count = 0: must be at least 1"),
        ({"count": 10}, "count = 10: must be at most 9"),
        ({"name": "a"}, "name = 'a': at least 2 characters are needed"),
        ({"note": ""}, "note = '': at least 1 character is needed"),
        ({"box": []}, "box = []: allowed is null or a table"),
        ({"box": {}}, "box.size: missing."),
        ({"box": {"size": "large"}}, "box.size = 'large': allowed is a whole number"),
        ({"tags": ["x", 1]}, "tags[1] = 1: allowed is a string"),
        ({"tags": ["x", "x"]}, "tags = ['x', 'x']: holds a value twice"),
        ({"tags": ["1", "2", "3", "4"]}, "tags = ['1', '2', '3', '4']: at most 3 allowed"),
        ({"table": {"a": "x"}}, "table.a = 'x': allowed is true or false or a number"),
        (
            {"table": {"A": True}},
            "table.A: not a name for a key here; allowed is lower-case letters",
        ),
        ({"slug": "ab"}, "slug = 'ab': allowed is one letter"),
    ],
)
def test_a_problem_names_key_value_and_what_is_allowed(change: dict[str, Any], words: str) -> None:
    assert check({**copy.deepcopy(GOOD), **change}) == [words]


def test_a_missing_key_is_described() -> None:
    assert check({}) == ["name: missing. What it is called."]
    assert check([]) == ["the file = []: allowed is a table"]


def test_problems_are_in_document_order_and_bounded() -> None:
    assert [
        line.partition(" ")[0] for line in check({**GOOD, "slug": "", "kind": "", "count": ""})
    ] == [
        "count",
        "kind",
        "slug",
    ]
    many = check({**GOOD, "table": {chr(97 + n): "x" for n in range(26)}})
    assert len(many) == MAX_PROBLEMS + 1 and many[-1] == "and more"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        (True, "True"),
        (["é"], r"['\xe9']"),
        ("x" * 1000, "'" + "x" * 76 + "..."),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, "{'a': {'b': {'c': {'d': {}}}}}"),
    ],
)
def test_a_value_is_formatted_on_one_bounded_line(value: object, text: str) -> None:
    assert format_value(value) == text


def test_a_close_name_is_suggested() -> None:
    assert did_you_mean("hangs", ["hang", "crash"]) == " Did you mean hang?"
    assert did_you_mean("zebra", ["hang", "crash"]) == ""
