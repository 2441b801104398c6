"""Names that a module's ``__getattr__`` makes."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.answers.api_history.lookup import Lookup, Missing, Unknown
from tests.unit.answers.api_history.releases import history_of

REFUSES = "    raise AttributeError(name)"


@pytest.mark.parametrize(
    "source",
    [
        f"def __getattr__(name):\n    if name == 'old':\n        return 1\n{REFUSES}",
        f"_MOVED = {{'old': 'inner'}}\ndef __getattr__(name):\n    if name in _MOVED:\n        return 1\n{REFUSES}",
        f"def __getattr__(name):\n    if name in ('old', 'older'):\n        return 1\n    else:\n    {REFUSES}",
    ],
)
def test_a_module_that_refuses_other_names_has_only_those_for_which_it_tests(source: str) -> None:
    lookup = Lookup(history_of({"1.0": {"lazy.py": source}}), 0)
    assert lookup.find("vllm.lazy.old").name == "old"
    with pytest.raises(Missing):
        lookup.find("vllm.lazy.unknown")


@pytest.mark.parametrize(
    "source",
    [
        "def __getattr__(name):\n    return load(name)",
        f"def __getattr__(name):\n    if name in load():\n        return 1\n{REFUSES}",
        f"def __getattr__(name):\n    if hasattr(other, name):\n        return 1\n{REFUSES}",
    ],
)
def test_a_module_may_have_any_name_if_the_source_does_not_list_them(source: str) -> None:
    with pytest.raises(Unknown):
        Lookup(history_of({"1.0": {"lazy.py": source}}), 0).find("vllm.lazy.unknown")
