"""Record what configuration the tests of a case need, from the tests as pytest collects them.

A test that calls a built-in probe is run up to its first question, with stand-ins for its fixtures,
because only the call itself says which parser it is about. Nothing of vLLM is started.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import MagicMock

import msgspec
import pytest

from ..util import codec
from .collection import EngineMarker, engine_marker, items
from .model import Case
from .needs import FILE, CaseNeeds, TestNeeds
from .proofs.fingerprint import code_fingerprint

PARSER_OPTIONS = {"parsers:tool_calls": "tool_call_parser", "parsers:reasoning": "reasoning_parser"}
"""The option of ``vllm serve`` that selects the parser which a built-in probe calls."""


def write_needs(case: Case) -> Path:
    """Collect the tests of a case and write what they need. Raises ``UsageError``."""
    path = case.directory / FILE
    codec.save(path, CaseNeeds(code_fingerprint(case.directory), collected_needs(items(case))))
    return path


def collected_needs(tests: Iterable[pytest.Function]) -> tuple[TestNeeds, ...]:
    """Return the needs of collected tests; those of one function and variant as one."""
    merged: dict[tuple[str, str | None], TestNeeds] = {}
    for item in tests:
        needs = _needs(item)
        known = merged.get((needs.test, needs.variant), needs)
        parsers = {
            option: tuple(sorted({*known.parsers.get(option, ()), *names}))
            for option, names in needs.parsers.items()
        }
        merged[needs.test, needs.variant] = msgspec.structs.replace(needs, parsers=parsers)
    return tuple(merged.values())


def _needs(item: pytest.Function) -> TestNeeds:
    marker = engine_marker(item)
    of_case = item.get_closest_marker("vllm_case")
    probe, parsers = _first_question(item)
    has_engine = not {"vllm_engine", "vllm_server"}.isdisjoint(item._fixtureinfo.argnames)
    return TestNeeds(
        test=item.originalname,
        front=marker.front if has_engine else "",
        engine=_engine(marker),
        parsers=parsers,
        probe=probe,
        variant=of_case.kwargs.get("variant") if of_case else None,
        computed=_is_computed(item),
        requires={
            package.replace("_", "-").lower(): text
            for marker in item.iter_markers("vllm_requires")
            for package, text in marker.kwargs.items()
            if package != "cause" and text != "*"
        },
    )


def _engine(marker: EngineMarker) -> dict[str, tuple[Any, ...]]:
    fields = {name: (value,) for name, value in marker.fixed.items()}
    fields |= {axis.name: axis.values for axis in marker.axes}
    if fields.pop("import_path", None):  # the case's own classes only make the failure show sooner
        fields = {name: tuple(map(_without_classes, values)) for name, values in fields.items()}
    return fields


def _without_classes(value: Any) -> Any:
    """Return a mapping without the entries that name a class by its path; others unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {k: v for k, v in value.items() if not (isinstance(v, str) and "." in v)}


class _Question(BaseException):
    """Ends a test at its first call of a probe. No ``Exception``, which a test may catch."""


def _first_question(item: pytest.Function) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return the first probe that a test calls if that is a built-in one, and the parsers that it
    is about, by option."""

    def ask(function: str, **arguments: Any) -> NoReturn:
        raise _Question(function, arguments)

    values = getattr(getattr(item, "callspec", None), "params", {})
    given = {"vllm_probe": ask, **values}
    names = item._fixtureinfo.argnames
    try:
        if "vllm_probe" in names:
            item.obj(**{name: given.get(name, MagicMock()) for name in names})
    except _Question as question:
        probe, arguments = question.args
        option = PARSER_OPTIONS.get(probe)
        if ":" in probe:
            return probe, {option: (arguments["parser"],)} if option else {}
    except Exception:  # a stand-in was not enough: the test is one about no parser
        pass
    return "", {}


def _is_computed(item: pytest.Function) -> bool:
    """Return whether a fixture of the case configures features of the engine.

    A number only makes the failure show sooner.
    """
    fixtures = item._fixtureinfo.name2fixturedefs.get("engine_spec")
    if not fixtures or fixtures[-1].func.__module__.startswith("pytest_vllm_regress."):
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(fixtures[-1].func)))
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    values = [value for node in dicts for value in node.values if value not in dicts]
    numbers = [type(getattr(value, "value", None)) in (int, float) for value in values]
    return not numbers or not all(numbers)
