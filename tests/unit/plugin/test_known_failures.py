"""What is known of the environment stands below a failed test of somebody else's suite."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_vllm_regress.plugin import known_failures
from pytest_vllm_regress.plugin.known_failures import name_known_failures
from tests.unit.plugin.conftest import MakeItem, report

ANSWERED = ("Requests to vLLM", "POST /v1/messages: status 404")
KNOWN = ("What is known of vllm-0.8.5", "/v1/messages exists since 0.11.1")


@pytest.mark.parametrize(
    ("marker", "wanted", "suite", "sections"),
    [
        (None, True, None, [ANSWERED, KNOWN]),
        (None, False, None, [ANSWERED]),
        (None, True, "matrix.jsonl", [ANSWERED]),
        ("vllm_case", True, None, [ANSWERED]),
    ],
)
def test_only_tests_without_a_case_get_names_and_only_if_wanted(
    make_item: MakeItem,
    monkeypatch: pytest.MonkeyPatch,
    marker: str | None,
    wanted: bool,
    suite: str | None,
    sections: list[tuple[str, str]],
) -> None:
    item: Any = make_item()
    item.config.getini = lambda name: wanted
    item.config.getoption = lambda name: suite
    monkeypatch.setattr(known_failures, "environment_of", lambda item: "vllm-0.8.5")
    monkeypatch.setattr(type(item), "get_closest_marker", lambda self, name: marker)
    failed = report("failed", text="no")
    failed.sections.append(ANSWERED)
    name_known_failures(item, failed)
    assert failed.sections == sections
