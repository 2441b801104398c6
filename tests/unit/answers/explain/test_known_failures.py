"""Which documented failures a failed test of somebody else's suite may show."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.explain.known_failures import KnownFailures, Suspects
from pytest_vllm_regress.cases.model import Case
from tests.helpers.cases import CaseFile, project_cases

TEST = 'def test(vllm_server):\n    vllm_server.post("{route}", {{}})\n'


def case(folder: Path, name: str, route: str, pattern: str = "nothing") -> Case:
    files = {f"test_{name}.py": TEST.format(route=route)}
    return CaseFile(name, kind="exception", phase="request", pattern=pattern).write(folder, files)


def test_the_text_of_a_failure_decides_before_routes(tmp_path: Path) -> None:
    texts = case(tmp_path, "texts", "/v1/other", "no room for the answer")
    routes = case(tmp_path, "routes", "/v1/messages")
    known = KnownFailures((texts, routes), {"vllm": "0.8.4"})
    report = "POST /v1/messages: status 200\nE   RuntimeError: no room for the answer"
    assert known.suspects(report) == Suspects(("texts",))
    assert known.suspects("POST /v1/messages: status 200") == Suspects((), ("routes",))
    assert known.suspects("E   assert 1 == 2") == Suspects()


def test_a_common_status_narrows_a_route(tmp_path: Path) -> None:
    cases = [
        case(tmp_path, "other", "/v1/messages"),
        case(tmp_path, "same", "/v1/messages", "status 500 for a list"),
    ]
    known = KnownFailures(tuple(cases), {"vllm": "0.8.4"})
    assert known.suspects("POST /v1/messages: status 500").perhaps == ("same",)
    assert known.suspects("POST /v1/messages: status 502").perhaps == ("other", "same")
    assert known.suspects("POST /v1/messages: status 401") == Suspects()


def test_a_route_that_the_release_does_not_have_explains_a_404() -> None:
    report = "POST /v1/messages: status 404"
    old = KnownFailures((), {"vllm": "0.8.5"}).suspects(report)
    assert old.missing == (str(old),) == ("/v1/messages exists since 0.11.1",)
    assert KnownFailures((), {"vllm": "0.33.0"}).suspects(report) == Suspects()


def test_a_route_that_many_have_in_common_says_nothing(tmp_path: Path) -> None:
    many = tuple(case(tmp_path, f"c{number}", "/v1/completions") for number in range(9))
    assert KnownFailures(many, {}).suspects("POST /v1/completions: status 200") == Suspects()


def test_only_failures_of_the_environment_count() -> None:
    old = KnownFailures.of("vllm-0.11.2", project_cases())
    new = KnownFailures.of("vllm-0.33.0", project_cases())
    assert "vllm-30264" in old.suspects("POST /tokenize: status 200").perhaps
    assert "vllm-30264" not in {case.id for case in new.cases}
    assert KnownFailures.of("/nowhere/python", project_cases()).cases == ()


@pytest.mark.parametrize(
    ("suspects", "words"),
    [
        (Suspects(("a",), ("b",)), "a"),
        (Suspects((), ("a", "b", "c", "d", "e")), "perhaps a, b, c and 2 more"),
        (Suspects(), ""),
    ],
)
def test_suspects_in_words(suspects: Suspects, words: str) -> None:
    assert str(suspects) == words
