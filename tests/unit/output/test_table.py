"""The verdict table: every symbol without colours, within the width, and harmless to a terminal."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from pytest_vllm_regress.cases.observation import Mechanism, Observation
from pytest_vllm_regress.cases.results import RunResult, TestResult, group_into_cells
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import Kind
from pytest_vllm_regress.output.table import lines, observation_lines, print_table, slowest_line
from pytest_vllm_regress.util.text import one_line


def result(
    case_id: str,
    environment: str,
    verdict: Verdict,
    reason: str = "why",
    because: str = "",
    device: str = "sim",
) -> TestResult:
    command = f"vllm-regress run {case_id} --env {environment}"
    return TestResult(
        case_id,
        "t",
        verdict,
        reason,
        device,
        environment,
        command=command,
        not_expected_because=because,
    )


GREEN = RunResult(
    (
        result("lmfe-124", "vllm-0.8.4-lmfe-0.10.3", Verdict.REPRODUCED),
        result("lmfe-124", "vllm-0.8.5", Verdict.FIXED),
        result("vllm-17173", "vllm-0.8.4", Verdict.REPRODUCED),
        result("vllm-17173", "vllm-0.8.5", Verdict.FIXED),
    )
)
ALL = RunResult(
    tuple(
        result(f"case-{v.value.lower().replace('_', '-')}", f"environment-{i}", v, f"why {v.value}")
        for i, v in enumerate(Verdict)
    )
)


def test_the_failure_of_another_case_is_named_although_the_verdict_is_expected() -> None:
    first, *others = GREEN.results
    run = RunResult((replace(first, same_as=("vllm-43920",)), *others))
    line = "same traceback or text as vllm-43920: lmfe-124 in vllm-0.8.4-lmfe-0.10.3 on sim"
    assert line in lines(run) and line not in lines(GREEN)


def test_columns_are_in_the_order_of_releases() -> None:
    runs = [
        replace(result("lmfe-124", f"vllm-{version}", Verdict.FIXED), versions={"vllm": version})
        for version in ("0.10.2", "0.8.4", "0.9.1")
    ]
    header = lines(RunResult(tuple(runs)), 120)[0]
    assert header.split() == ["case", "vllm-0.8.4", "vllm-0.9.1", "vllm-0.10.2"]


def test_observations_of_passing_and_failing_tests() -> None:
    at_work = (Mechanism("tokens were made", True), Mechanism("blocks were\ncached", False))
    passed = Observation(Kind.PASSED, "request", "3 replies", at_work=at_work)
    failed = Observation(Kind.HANG, "stop", "still alive after 30 s\x1b[2J")
    results = (
        replace(GREEN.results[1], observation=passed, duration_s=1.26),
        replace(GREEN.results[0], observation=failed, control="passed"),
        GREEN.results[2],
    )
    assert list(observation_lines(results)) == [
        "t in vllm-0.8.5 on sim: FIXED, 1.3 s",
        "    passed in phase request: 3 replies",
        "    at work: tokens were made",
        "    NOT at work: blocks were\\ncached",
        "t in vllm-0.8.4-lmfe-0.10.3 on sim: REPRODUCED, 0.0 s",
        "    hang in phase stop: still alive after 30 s\\x1b[2J; its control leg passed",
        "t in vllm-0.8.4 on sim: REPRODUCED, 0.0 s",
    ]


def test_matrix() -> None:
    rows = lines(GREEN)
    assert rows[1].split() == ["case", "vllm-0.8.4", "0.10.3", "vllm-0.8.5"]
    assert rows[2].split() == ["lmfe-124", "●", "repro", "✓", "fixed"]
    assert rows[3].split() == ["vllm-17173", "●", "repro", "✓", "fixed"]
    assert rows[-1] == "● 2 REPRODUCED, ✓ 2 FIXED on sim: all as expected"


def test_a_run_with_problems_is_not_called_all_as_expected() -> None:
    rows = lines(
        dataclasses.replace(
            GREEN, problems=("x: interrupted; only cases whose tests had all ended have a verdict",)
        )
    )
    assert rows[-1] == "● 2 REPRODUCED, ✓ 2 FIXED on sim: as expected, as far as there are verdicts"


@pytest.mark.parametrize("width", [80, 100, 300])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_verdict_at_every_width(width: int, ascii_only: bool) -> None:
    rows = lines(ALL, width, ascii_only=ascii_only)
    text = "\n".join(rows)
    assert max(map(len, rows)) <= width
    for verdict in Verdict:
        assert verdict.value in text
        sign = verdict.ascii_symbol if ascii_only else verdict.symbol
        assert f"{sign} {verdict.short_word}" in text
        has_reason = (
            not verdict.expected or verdict is Verdict.NOT_APPLICABLE
        )  # a cell where nothing ran says why
        assert (f"why {verdict.value}" in text) is has_reason
    if ascii_only:
        text.encode("ascii")
    assert text.count("repeat: vllm-regress run case-") == 3
    assert "3 of 6 not as expected" in " ".join(text.split())


def dense(environments: int, unexpected: tuple[str, str] = ("", "")) -> RunResult:
    """Return ten cases in each environment, one of them with an unexpected verdict."""
    names = [f"vllm-0.{8 + number // 4}.{number % 4}" for number in range(environments)]
    return RunResult(
        tuple(
            result(
                case_id,
                name,
                Verdict.REGRESSED if (case_id, name) == unexpected else Verdict.REPRODUCED,
            )
            for case_id in (f"vllm-1717{number}" for number in range(10))
            for name in names
        )
    )


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("environments", [2, 4, 20])
def test_a_case_takes_one_line(environments: int, width: int) -> None:
    rows = lines(dense(environments), width)
    assert max(map(len, rows)) <= width
    case_rows = [line for line in rows if line.startswith("vllm-")]
    assert [line.split()[0] for line in case_rows] == [f"vllm-1717{number}" for number in range(10)]
    assert {line.count("●") for line in case_rows} == {environments}
    assert all(
        f"vllm-0.{8 + number // 4}.{number % 4}" in " ".join(rows) for number in range(environments)
    )
    assert len(rows) <= 24, "a screen"


def test_environments_without_room_for_words_are_numbered_and_explained() -> None:
    rows = lines(dense(20))
    assert rows[0].split() == ["case", *map(str, range(1, 21))]
    assert "20 vllm-0.12.3" in "\n".join(rows)


def test_numbered_environments_are_explained_on_a_narrow_screen() -> None:
    assert "1 vllm-0.8.0 2 vllm-0.8.1 3 vllm-0.8.2" in lines(dense(8), 40)


def test_a_table_that_would_be_mostly_empty_lists_the_environments_of_each_case() -> None:
    run = RunResult(
        tuple(
            result(f"case-{number}", f"environment-{number + other}", Verdict.FIXED)
            for number in range(20)
            for other in (0, 1)
        )
    )
    rows = lines(run)
    assert rows[1] == "case-0   ✓ fixed environment-0, environment-1"
    assert rows[20] == "case-19  ✓ fixed environment-19, environment-20"


@pytest.mark.parametrize("environments", [2, 20, 60])
def test_what_is_not_expected_is_in_the_last_row_and_named_in_the_last_line(
    environments: int,
) -> None:
    rows = lines(dense(environments, ("vllm-17173", "vllm-0.8.1")), 80)
    case_rows = [line.split()[0] for line in rows if line.startswith("vllm-")]
    assert case_rows[-1] == "vllm-17173"
    assert rows[-2:] == [
        f"1 of {10 * environments} not as expected:",
        "[1] ✗ REGRESSED vllm-17173 in vllm-0.8.1 on sim",
    ]


def test_several_devices_have_columns_of_their_own() -> None:
    run = RunResult(
        (result("a", "e", Verdict.FIXED), result("a", "e", Verdict.REPRODUCED, device="cpu"))
    )
    assert [line.split() for line in lines(run)[:2]] == [
        ["case", "e", "(sim)", "e", "(cpu)"],
        ["a", "✓", "fixed", "●", "repro"],
    ]
    assert lines(run)[-1] == "● 1 REPRODUCED, ✓ 1 FIXED on sim, cpu: all as expected"


def test_not_expected_by_evidence() -> None:
    run = RunResult(
        (result("a", "e", Verdict.NOT_APPLICABLE, "no pool", "e is evidence of REPRODUCED"),),
        ("pytest failed",),
    )
    text = "\n".join(lines(run))
    assert "n/a [1]" in text
    assert "[1] NOT_APPLICABLE: e is evidence of REPRODUCED - no pool" in text
    assert "problem: pytest failed" in text


def test_cells_combine_tests_and_keep_devices_apart() -> None:
    cells = group_into_cells(
        [
            result("a", "e", Verdict.FIXED),
            result("a", "e", Verdict.REGRESSED),
            result("a", "e", Verdict.FIXED, device="cpu"),
        ]
    )
    assert [(cell.device, cell.verdict, cell.expected) for cell in cells] == [
        ("sim", Verdict.REGRESSED, False),
        ("cpu", Verdict.FIXED, True),
    ]
    assert cells[0].why() == ["REGRESSED: why"]


def test_control_characters_are_escaped() -> None:
    run = RunResult((result("a\x1b[2J", "e\x07", Verdict.REGRESSED, "\x1b]0;x\x07\udc80" * 3),))
    stream = io.StringIO()
    print_table(run, Console(file=stream, force_terminal=True, color_system=None, width=80))
    for text in ("\n".join(lines(run)), stream.getvalue()):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "\\x1b" in text
        text.encode()


def test_markup_is_not_interpreted() -> None:
    assert "[red]x[/red]" in "\n".join(
        lines(RunResult((result("a", "e", Verdict.REGRESSED, "[red]x[/red]"),)))
    )


def test_nothing() -> None:
    assert lines(RunResult()) == ["no verdicts"]


@pytest.mark.parametrize(
    "name", ["[/x]", "[link=https://example.org]a[/link]", "[bold]", ":tada:", "a\nb", "\x1b[2J"]
)
def test_a_name_is_text_in_every_cell(name: str) -> None:
    """Regression: Rich took brackets for markup, crashed on some and made links of others."""
    run = RunResult(
        (TestResult(name, name, Verdict.REGRESSED, name, "sim", name, {}, command=name),),
        problems=(name,),
    )
    for width in (20, 60, 200):
        stream = io.StringIO()
        print_table(
            run, Console(file=stream, width=width, force_terminal=True, color_system="truecolor")
        )
        text = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
        assert "\x1b" not in text
        text = "".join("".join(lines(run, width)).split())
        assert "".join(one_line(name).split()) in text.replace("\u2026", "")


def test_the_slowest_cells_are_named_after_a_long_run() -> None:
    results = [replace(ALL.results[0], case_id=f"c-{n}", duration_s=float(n)) for n in range(7)]
    assert slowest_line(RunResult(tuple(results[:5]))) == ""
    line = slowest_line(RunResult((*results, results[3])))  # two tests of one case
    assert re.findall(r"(\d+) s (c-\d)", line) == [
        ("6", "c-3"),
        ("6", "c-6"),
        ("5", "c-5"),
        ("4", "c-4"),
        ("2", "c-2"),
    ]
