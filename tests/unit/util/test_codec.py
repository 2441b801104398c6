"""Values as JSON documents: what is written is read again, and each error names key, value and what
is allowed."""

from __future__ import annotations

import dataclasses
import enum
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import pytest
from packaging.version import Version

from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.util import codec
from pytest_vllm_regress.util.codec import Meta


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(frozen=True)
class Inner:
    version: Version
    limits: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({}), hash=False
    )


class Sample(codec.Document, frozen=True):
    colour: Colour
    names: Annotated[tuple[str, ...], Meta(max_length=2)] = ()
    inner: Inner | None = None
    count: Annotated[int, Meta(ge=1, description="How many.")] = 1


VALUE = Sample(Colour.RED, ("a",), Inner(Version("1.2"), MappingProxyType({"x": 1})))


def test_a_value_survives_encoding_and_decoding() -> None:
    plain = codec.encode(VALUE)
    assert plain == {
        "colour": "red",
        "names": ("a",),
        "inner": {"version": "1.2", "limits": {"x": 1}},
    }
    assert codec.decode(Sample, plain, "f") == VALUE


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"colour": "gren"}, "f: colour = 'gren': allowed: red, blue."),
        (
            {"colour": "red", "cuont": 1},
            "f: cuont: unknown key. Did you mean count? Allowed here: colour, names, inner, count",
        ),
        ({"colour": "red", "count": 0}, "f: count = 0: must be at least 1"),
        (
            {"colour": "red", "names": ["a", "b", "c"]},
            "f: names = ['a', 'b', 'c']: at most 2 allowed",
        ),
        ({"colour": "red", "inner": {"version": 3}}, "f: inner.version = 3: allowed is a string"),
        ({}, "f: colour: missing."),
        (
            {"colour": "red", "inner": {"version": "what?"}},
            "f: Invalid version: 'what?' - at `$.inner.version`",
        ),
    ],
)
def test_an_error_names_the_key_and_what_is_allowed(document: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        codec.decode(Sample, document, "f")
    assert str(caught.value) == message


def test_all_problems_are_named(tmp_path: Path) -> None:
    file = tmp_path / "sample.toml"
    file.write_text('colour = "green"\ncount = -1\n')
    with pytest.raises(
        UsageError, match=r"sample\.toml: colour = 'green'.*\n.*sample\.toml: count = -1"
    ):
        codec.load(Sample, file, 1000, what="a sample")


def test_a_saved_file_is_loaded_again(tmp_path: Path) -> None:
    codec.save(tmp_path / "sample.json", VALUE)
    assert codec.load(Sample, tmp_path / "sample.json", 1000, what="a sample") == VALUE


def test_threads_may_need_a_new_type_at_the_same_time() -> None:
    threads, interval = 4, sys.getswitchinterval()
    start = threading.Barrier(threads)

    def decoded(kind: type, document: object) -> object:
        start.wait()
        return codec.decode(kind, document, "x.json")

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(200):
                fields = [(f"f{n}", int, 0) for n in range(40)]
                inner = dataclasses.make_dataclass("inner", fields)
                outer = dataclasses.make_dataclass("outer", [("inner", inner), *fields])
                found = pool.map(decoded, [outer] * threads, [{"inner": {"f1": 1}}] * threads)
                assert list(found) == [outer(inner(f1=1))] * threads
    finally:
        sys.setswitchinterval(interval)
