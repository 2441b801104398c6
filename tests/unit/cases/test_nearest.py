"""What a text has instead of what a pattern wants."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.cases.nearest import difference
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.errors import Kind, Masked, Part

LOG = """INFO 01-01 00:00:00 engine.py:1] the engine is up
ERROR scheduler.py:12] Request req-3 holds 7 encoder inputs, but the cache has 4
INFO the engine is idle"""


def differs(pattern: str, **parts: str) -> str:
    texts = {Part(name): Masked(text) for name, text in (parts or {"log": LOG}).items()}
    return difference(pattern, Observation(Kind.HANG, "request", "", texts), [Part.LOG])


def test_the_nearest_line_says_what_differs() -> None:
    assert differs(r"Request \S+ holds \d+ decoder inputs") == (
        "in log, line 2, 'Request req-3 holds 7 ' goes on with 'encoder inputs, but the cache has 4' "
        "instead of 'decoder inputs'"
    )
    words = differs("its request holds 7 encoder inputs")
    assert words == f"the nearest is log, line 2: {LOG.splitlines()[1][:60]!r}"


@pytest.mark.parametrize("pattern", ["holds 8 encoder inputs", "but the cache has 5"])
def test_a_number_that_varies_is_pointed_out(pattern: str) -> None:
    assert differs(pattern).endswith(r"A number that varies is \d+")
    assert r"\d+" not in differs("holds 7 decoder inputs")


def test_the_part_that_has_the_text_is_named() -> None:
    words = differs("the documented words", log=LOG, answer="500: the documented words")
    assert words == 'it matches in answer, which is not searched: name it in where = ["answer"]'


@pytest.mark.parametrize(
    ("pattern", "log"),
    [("words that nothing here prints", LOG), (r"\d+", LOG), ("the engine is up", "")],
)
def test_nothing_is_said_where_nothing_is_similar(pattern: str, log: str) -> None:
    assert differs(pattern, log=log) == ""


def test_half_a_group_is_no_pattern() -> None:
    assert "goes on with 'encoder inputs, but" in differs("holds (?:6|7|8) (?:decoder) inputs")
