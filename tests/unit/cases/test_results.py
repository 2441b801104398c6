"""Result files: round trip, rejection of invalid files, merging."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_vllm_regress.cases.results import (
    MAX_DOSSIER,
    RunResult,
    TestResult,
    group_into_cells,
    merge_results,
    read_results,
    write_compact_results,
    write_results,
)
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Cause, UsageError
from pytest_vllm_regress.output.formats import junit_xml, markdown_text
from pytest_vllm_regress.output.table import lines
from pytest_vllm_regress.util.masking import mask

ONE = TestResult(
    case_id="vllm-17173",
    test="vllm-17173/test_a.py::test[n2]",
    verdict=Verdict.REPRODUCED,
    reason="the documented wrong-result",
    device="sim",
    environment="vllm-0.8.4",
    versions={"vllm": "0.8.4"},
    started_at=1000.5,
    duration_s=2.5,
    command="vllm-regress run vllm-17173",
)


def plain(min_size: int = 0, max_size: int = 50) -> st.SearchStrategy[str]:
    """Generate text that looks like no secret: results are masked when they are written."""
    return st.text(min_size=min_size, max_size=max_size).filter(lambda text: mask(text) == text)


@given(
    results=st.lists(
        st.builds(
            TestResult,
            case_id=st.just("a-1"),
            test=plain(max_size=20),
            verdict=st.sampled_from(Verdict),
            reason=plain(max_size=50),
            device=st.sampled_from(["sim", "cpu", "gpu", "unknown"]),
            environment=plain(min_size=1, max_size=20),
            versions=st.dictionaries(plain(max_size=8), plain(max_size=8), max_size=3),
            started_at=st.floats(0, 1e10),
            duration_s=st.floats(0, 1e6),
            variant=st.none() | plain(max_size=9),
            symptom=plain(max_size=50),
            dossier=plain(max_size=50),
            seed=st.none() | st.integers(0, 2**64),
            not_expected_because=plain(max_size=9),
        ),
        max_size=4,
    )
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, results: list[TestResult]) -> None:
    file = tmp_path_factory.getbasetemp() / "round-trip.json"
    run = RunResult(tuple(results), ("a problem",))
    for write in (write_results, write_compact_results):
        write(file, run)
        assert read_results(file) == run


def test_expected_verdicts() -> None:
    assert ONE.expected
    assert not replace(ONE, not_expected_because="evidence of the other side").expected
    assert not replace(ONE, verdict=Verdict.REGRESSED).expected
    assert RunResult((ONE,)).as_expected
    assert not RunResult().as_expected
    assert not RunResult((ONE,), ("pytest failed",)).as_expected


def test_long_texts_are_truncated(tmp_path: Path) -> None:
    write_results(
        tmp_path / "a.json",
        RunResult((replace(ONE, dossier="begin" + "x" * 10**6 + "end", reason="r" * 10**5),)),
    )
    (back,) = read_results(tmp_path / "a.json").results
    assert len(back.dossier) <= MAX_DOSSIER
    assert back.dossier.startswith("begin")
    assert back.dossier.endswith("end")
    assert len(back.reason) <= 4000


def test_write_is_atomic(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.json"
    write_results(file, RunResult((ONE,)))
    assert [p.name for p in file.parent.iterdir()] == ["a.json"]
    (tmp_path / "taken").write_text("x")
    with pytest.raises(UsageError, match=r"taken/a.json: cannot be written: .*Choose another path"):
        write_results(tmp_path / "taken" / "a.json", RunResult())


def _changed(**changes: Any) -> dict[str, Any]:
    document = RunResult((ONE,)).to_json()
    document["results"][0].update(changes)
    return document


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"schema": NaN}', "not a JSON number"),
        (b"[]", "no key schema"),
        (b'{"schema": 1}', "schema = 1: this vllm-regress reads 2"),
        (b'{"schema": 2}', "results: missing"),
        (b'{"schema": 1, "verdicts": {}}', "not a result file but the table of verdicts"),
        (
            json.dumps(_changed(verdict="GREEN")).encode(),
            "results[0].verdict = 'GREEN': allowed: REPRODUCED",
        ),
        (
            json.dumps(_changed(expected=False)).encode(),
            "results[0].expected = False: contradicts verdict REPRODUCED",
        ),
        (
            json.dumps(_changed(verdict="REGRESSED")).encode(),
            "results[0].expected = True: contradicts verdict REGRESSED",
        ),
        (
            json.dumps(_changed(versions={"vllm": 1})).encode(),
            "results[0].versions.vllm = 1: allowed is a string",
        ),
        (
            json.dumps(_changed(started_at="now")).encode(),
            "results[0].started_at = 'now': allowed is a number",
        ),
        (
            json.dumps(_changed(observation="x")).encode(),
            "results[0].observation = 'x': allowed is null or a table",
        ),
        (
            json.dumps(_changed(observation={})).encode(),
            "results[0].observation.kind: missing. exception, wrong-result,",
        ),
        (
            json.dumps(_changed(devise="sim")).encode(),
            "results[0].devise: unknown key. Did you mean device?",
        ),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_results(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert words in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_results(tmp_path / "none.json")


def test_merge_keeps_the_later_result() -> None:
    later = replace(ONE, verdict=Verdict.INCONCLUSIVE, started_at=2000.0)
    other = replace(ONE, environment="vllm-0.8.5", verdict=Verdict.FIXED)
    for runs in (
        [RunResult((ONE,)), RunResult((later, other))],
        [RunResult((later, other)), RunResult((ONE,))],
    ):
        merged = merge_results(runs)
        assert set(map(_key, merged.results)) == {
            ("vllm-0.8.4", "INCONCLUSIVE"),
            ("vllm-0.8.5", "FIXED"),
        }
    assert merge_results([RunResult(problems=("a",)), RunResult(problems=("a", "b"))]).problems == (
        "a",
        "b",
    )


def _key(result: TestResult) -> tuple[str, str]:
    return result.environment, result.verdict.value


@pytest.mark.parametrize(
    ("tests", "verdict", "cause"),
    [
        ([("FIXED", True, None), ("NOT_APPLICABLE", True, Cause.RELEASE)], "FIXED", None),
        ([("FIXED", False, None), ("FIXED", False, None)], "NOT_APPLICABLE", Cause.HARNESS),
        (
            [("FIXED", False, None), ("NOT_APPLICABLE", True, Cause.RELEASE)],
            "NOT_APPLICABLE",
            Cause.RELEASE,
        ),
        (
            [("NOT_APPLICABLE", True, Cause.RELEASE), ("NOT_APPLICABLE", True, Cause.HARNESS)],
            "NOT_APPLICABLE",
            Cause.HARNESS,
        ),
        (
            [("NOT_APPLICABLE", True, Cause.RELEASE), ("NOT_APPLICABLE", True, None)],
            "NOT_APPLICABLE",
            None,
        ),
        ([("FIXED", True, None), ("REGRESSED", False, None)], "REGRESSED", None),
        ([("REPRODUCED", True, None), ("FIXED", False, None)], "REPRODUCED", None),
        ([("FIXED", True, None), ("INCONCLUSIVE", False, None)], "INCONCLUSIVE", None),
    ],
)
def test_a_cell_has_the_verdict_of_the_tests_that_can_show_the_failure(
    tests: list[tuple[str, bool, Cause | None]], verdict: str, cause: Cause | None
) -> None:
    results = [
        replace(ONE, test=str(number), verdict=Verdict(name), decides=decides, cause=why)
        for number, (name, decides, why) in enumerate(tests)
    ]
    (cell,) = group_into_cells(results)
    assert (cell.verdict.value, cell.cause) == (verdict, cause)
    assert bool(cell.not_run_because) == (verdict == "NOT_APPLICABLE")
    assert RunResult(tuple(results)).as_expected == (verdict in ("FIXED", "REPRODUCED"))


def test_a_run_in_which_nothing_was_decided_is_not_as_expected() -> None:
    passed = replace(ONE, verdict=Verdict.FIXED, decides=False)
    run = RunResult((passed,))
    assert not run.as_expected
    assert lines(run)[-1].endswith("NOT_APPLICABLE on sim: nothing was decided")
    assert "Nothing was decided." in markdown_text(run)
    assert "cannot show the failure here" in junit_xml(run)
    both = RunResult((passed, replace(ONE, case_id="other", verdict=Verdict.FIXED)))
    assert both.as_expected
    assert lines(both)[-1].endswith("as expected, but 1 of 2 not decided")
