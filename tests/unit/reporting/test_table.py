"""The verdict table: every symbol without colours, within the width, and harmless to a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from pytest_vllm_regress.cases.cells import group_into_cells
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.reporting.table import lines, print_table
from pytest_vllm_regress.util.text import one_line


def result(
    case_id: str, environment: str, verdict: Verdict, reason: str = "why", because: str = "", device: str = "sim"
) -> TestResult:
    command = f"vllm-regress run {case_id} --env {environment}"
    return TestResult(case_id, "t", verdict, reason, device, environment, command=command, not_expected_because=because)


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


def test_matrix() -> None:
    shown = lines(GREEN)
    assert shown[1].split() == ["case", "0.10.3", "vllm-0.8.5", "vllm-0.8.4"]
    assert shown[2].split() == ["lmfe-124", "●", "REPRODUCED", "✓", "FIXED"]
    assert shown[3].split() == ["on", "sim", "on", "sim"]
    assert shown[-1] == "2 REPRODUCED, 2 FIXED: all as expected"


@pytest.mark.parametrize("width", [80, 100, 300])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_verdict_at_every_width(width: int, ascii_only: bool) -> None:
    shown = lines(ALL, width, ascii_only=ascii_only)
    text = "\n".join(shown)
    assert max(map(len, shown)) <= width
    for verdict in Verdict:
        assert verdict.value in text
        has_reason = not verdict.expected or verdict is Verdict.NOT_APPLICABLE  # a cell where nothing ran says why
        assert (f"why {verdict.value}" in text) is has_reason
    if ascii_only:
        text.encode("ascii")
    assert text.count("repeat: vllm-regress run case-") == 3
    assert "3 not as expected" in " ".join(text.split())


def test_not_expected_by_evidence() -> None:
    run = RunResult(
        (result("a", "e", Verdict.NOT_APPLICABLE, "no pool", "e is evidence of REPRODUCED"),), ("pytest failed",)
    )
    text = "\n".join(lines(run))
    assert "NOT_APPLICABLE [1]" in text
    assert "NOT_APPLICABLE: e is evidence of REPRODUCED - no pool" in text
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
    assert "[red]x[/red]" in "\n".join(lines(RunResult((result("a", "e", Verdict.REGRESSED, "[red]x[/red]"),))))


def test_nothing() -> None:
    assert lines(RunResult()) == ["no verdicts"]


@pytest.mark.parametrize("name", ["[/x]", "[link=https://example.org]a[/link]", "[bold]", ":tada:", "a\nb", "\x1b[2J"])
def test_a_name_is_text_in_every_cell(name: str) -> None:
    """Regression: Rich took brackets for markup, crashed on some and made links of others."""
    run = RunResult((TestResult(name, name, Verdict.REGRESSED, name, "sim", name, {}, command=name),), problems=(name,))
    for width in (20, 60, 200):
        stream = io.StringIO()
        print_table(run, Console(file=stream, width=width, force_terminal=True, color_system="truecolor"))
        shown = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
        assert "\x1b" not in shown
        text = "".join("".join(lines(run, width)).split())
        assert "".join(one_line(name).split()) in text.replace("\u2026", "")
