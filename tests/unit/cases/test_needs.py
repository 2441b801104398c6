"""The recorded needs of the tests of a case: what their markers, probes and fixtures say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.needs import FILE, TestNeeds, needs_of, needs_problem
from pytest_vllm_regress.cases.recording import write_needs
from pytest_vllm_regress.errors import UsageError
from tests.helpers.cases import CaseFile, project_cases

ENGINE = '''
import pytest
pytestmark = pytest.mark.vllm_case("demo")

@pytest.mark.vllm_engine(front="serve", tp=[2, 4], extra={"scheduler_cls": "own.Scheduler", "n": 1}, import_path=["own"])
def test_server(vllm_server): raise SystemExit
'''  # fmt: skip
OTHER = """
class Test{name}:
    @pytest.fixture
    def engine_spec(self, engine_spec, vllm_leg): return engine_spec.merged_with({{"extra": {settings}}})

    @pytest.mark.vllm_case("demo", variant="other")
    def test_{name}(self, vllm_engine): raise SystemExit
"""
PROBE = """
import pytest

def ask(probe, parser): probe("parsers:tool_calls", parser=parser)

@pytest.mark.vllm_case("demo")
@pytest.mark.parametrize("parser", ["hermes", "mistral"])
def test_parsers(vllm_probe, vllm_at_work, parser):
    vllm_at_work("two", vllm_at_work.x)
    ask(vllm_probe, parser)

@pytest.mark.vllm_case("demo")
def test_own_probe(vllm_probe): vllm_probe("own")

@pytest.mark.vllm_case("demo")
def test_that_fails_before_it_asks(vllm_probe): [].pop()
"""


def recorded(case: Case) -> dict[str, TestNeeds]:
    write_needs(case)
    return {needs.test: needs for needs in needs_of(case)}


def test_markers_and_fixtures_tell_what_an_engine_needs(tmp_path: Path) -> None:
    (tmp_path / "demo" / "own").mkdir(parents=True)
    others = {"number": "{'a': 5}", "truth": "{'a': True}", "error": "1 / 0"}
    classes = [OTHER.format(name=name, settings=settings) for name, settings in others.items()]
    needs = recorded(CaseFile().write(tmp_path, {"test_demo.py": "".join([ENGINE, *classes])}))
    engine = {"tensor_parallel_size": (2, 4), "extra": ({"n": 1},)}
    assert needs["test_server"] == TestNeeds(test="test_server", front="serve", engine=engine)
    for name in others:
        assert needs[f"test_{name}"] == TestNeeds(
            test=f"test_{name}", front="offline", variant="other", computed=name != "number"
        )


def test_a_probe_tells_the_parsers_that_it_is_asked_about(tmp_path: Path) -> None:
    needs = recorded(CaseFile().write(tmp_path, {"test_demo.py": PROBE}))
    assert needs["test_parsers"] == TestNeeds(
        test="test_parsers",
        probe="parsers:tool_calls",
        parsers={"tool_call_parser": ("hermes", "mistral")},
    )
    for test in ("test_own_probe", "test_that_fails_before_it_asks"):
        assert needs[test] == TestNeeds(test=test)


def test_needs_are_out_of_date_when_the_code_of_the_case_changes(tmp_path: Path) -> None:
    case = CaseFile().write(tmp_path, {"test_demo.py": PROBE})
    assert needs_of(case) == ()
    assert needs_problem(case).endswith(f"{FILE}: missing")
    write_needs(case)
    assert needs_problem(case) == ""
    (case.directory / "test_demo.py").write_text(PROBE.replace("own", "other"))
    assert needs_problem(case).endswith(f"{FILE}: out of date")


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    case = CaseFile().write(tmp_path, {FILE: '{"code": 1, "tests": []}'})
    with pytest.raises(UsageError, match=FILE):
        needs_of(case)


@pytest.mark.parametrize("case", project_cases(), ids=lambda case: case.id)
def test_the_needs_of_every_case_are_recorded(case: Case) -> None:
    needs = needs_of(case)
    assert needs
    assert all(names for test in needs for names in test.parsers.values())
