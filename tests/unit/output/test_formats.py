"""Markdown and JUnit: required content, and hostile texts that stay text."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.results import RunResult, TestResult, read_results, write_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.output.formats import junit_xml, markdown_text
from pytest_vllm_regress.output.pages.run_page import page
from pytest_vllm_regress.output.table import lines
from tests.helpers import hostile
from tests.helpers.cases import project_cases

CASES = project_cases()


def result(environment: str, verdict: Verdict, **more: object) -> TestResult:
    values: dict[str, object] = {
        "versions": {"vllm": environment.removeprefix("vllm-")},
        "command": "vllm-regress run vllm-17173",
        **more,
    }
    return TestResult("vllm-17173", "t.py::test", verdict, "because", "sim", environment, **values)  # type: ignore[arg-type]


RUN = RunResult(
    (
        result("vllm-0.10.2", Verdict.FIXED, duration_s=3.0),
        result("vllm-0.8.4", Verdict.REPRODUCED, symptom="expected 8 results, got 1"),
        result("vllm-0.9.2", Verdict.REGRESSED, dossier="stack"),
    )
)


class Tags(HTMLParser):
    """Collects the elements and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_markdown() -> None:
    lines = markdown_text(RUN).splitlines()
    assert lines[0] == "| case | vllm-0.8.4 | vllm-0.9.2 | vllm-0.10.2 |"
    assert lines[2] == "| vllm-17173 | ● REPRODUCED (sim) | **✗ REGRESSED** (sim) | ✓ FIXED (sim) |"
    assert "1 of 3 cells are not as expected." in lines


def tokens(markdown: str) -> list[Token]:
    """Return the inline tokens of the text as GitHub's Markdown renders it."""
    blocks = MarkdownIt("commonmark").enable("table").parse(markdown)
    assert {block.type for block in blocks} <= {
        *(
            "inline",
            "paragraph_open",
            "paragraph_close",
            "bullet_list_open",
            "bullet_list_close",
            "list_item_open",
            "list_item_close",
        ),
        *(
            f"{part}_{end}"
            for part in ("table", "thead", "tbody", "tr", "th", "td")
            for end in ("open", "close")
        ),
    }
    return [piece for block in blocks for piece in block.children or ()]


@pytest.mark.parametrize(
    "text",
    [
        "www.example.org",
        "see GH-26",
        "fixed in 0123abcd",
        "@everyone",
        "#26",
        "a/b#26",
        ":tada:",
        "$x$",
        "``",
        "a | b",
        "- x",
    ],
)
def test_nothing_in_markdown_becomes_a_link_or_a_mention(text: str) -> None:
    """GitHub looks for references in all text except code, whether it is escaped or not."""
    markdown = markdown_text(
        RunResult(
            (result("vllm-0.8.4", Verdict.REGRESSED, not_expected_because=text),), problems=(text,)
        )
    )
    code = [token.content for token in tokens(markdown) if token.type == "code_inline"]
    assert sum(text in token for token in code) == 2
    assert not any(text in token.content for token in tokens(markdown) if token.type == "text")


def test_a_name_is_one_line_of_a_table() -> None:
    forged = RunResult(
        (TestResult("a\nvllm-1  all fine", "t", Verdict.FIXED, "", "sim", "e\n| x |", {}),)
    )
    for text in (markdown_text(forged), "\n".join(lines(forged))):
        assert not [
            line for line in text.splitlines() if line.lstrip("| ").startswith(("vllm-1", "x |"))
        ]


@pytest.mark.parametrize(
    "character", ["\x9b", "\x85", "\u202e", "\u2066", "\u200b", "\u200f", "\u2028", "\x7f", "\x1b"]
)
def test_control_characters_are_escaped_in_junit(character: str) -> None:
    run = RunResult(
        (
            replace(
                result("vllm-0.8.4", Verdict.REGRESSED, dossier=character), test=f"a{character}b"
            ),
        )
    )
    xml = junit_xml(run)
    assert character not in xml
    assert (
        ElementTree.fromstring(xml).find(".//testcase").get("name") == f"a{ascii(character)[1:-1]}b"  # type: ignore[union-attr]
    )


@pytest.mark.slow
@pytest.mark.parametrize("one_environment", [True, False])
def test_reports_take_linear_time(one_environment: bool) -> None:
    """Regression: 1,500 pairs took 90 s, and 5,000 cases 11 s.

    Counts executed lines, which do not depend on how busy the machine is.
    """

    def executed_lines(name: str, cases: int) -> int:
        environments = [
            name if one_environment else f"{name}-{number:03}" for number in range(cases)
        ]
        run = RunResult(
            tuple(
                TestResult(
                    f"{name}-{n:03}",
                    "t",
                    Verdict.REGRESSED,
                    "why",
                    "sim",
                    environments[n],
                    {"vllm": "0.8.4"},
                )
                for n in range(cases)
            )
        )
        executed = 0

        def count(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal executed
            executed += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            text = "".join((page(run), markdown_text(run), junit_xml(run), *lines(run)))
        finally:
            sys.settrace(before)
        assert len(text) < cases * 6000
        assert text.count(f"{name}-{cases - 1:03}") >= 4
        return executed

    executed_lines("one", 200)  # which loads templates and fills caches
    assert executed_lines("two", 400) <= 2.01 * executed_lines("few", 200)


def test_hostile_texts_stay_text_in_markdown() -> None:
    text = markdown_text(hostile.run())
    outside = [
        token.content for token in tokens(text) if token.type not in ("code_inline", "softbreak")
    ]
    assert not re.search(r"[<>`\[@]", "".join(outside))
    assert all(
        line.startswith(("| ", "**", "- ", "Problem: ")) or not line or line[0].isalnum()
        for line in text.splitlines()
    )


def test_junit() -> None:
    root = ElementTree.fromstring(junit_xml(RUN))
    suites = {suite.get("name"): suite for suite in root}
    assert {name: (s.get("failures"), s.get("skipped")) for name, s in suites.items()} == {
        "vllm-0.10.2": ("0", "0"),
        "vllm-0.8.4": ("0", "1"),
        "vllm-0.9.2": ("1", "0"),
    }
    properties = {p.get("name"): p.get("value") for p in suites["vllm-0.9.2"].iter("property")}
    assert properties["vllm_verdict"] == "REGRESSED"
    failure = suites["vllm-0.9.2"].find(".//failure")
    assert failure is not None
    assert failure.text == "stack"


def test_hostile_texts_are_well_formed_junit() -> None:
    assert len(list(ElementTree.fromstring(junit_xml(hostile.run())).iter("testcase"))) == len(
        hostile.TEXTS
    )


@given(st.text(), st.text())
def test_any_text_survives_every_format(reason: str, name: str) -> None:
    run = RunResult(
        (
            TestResult(
                "a-case",
                name,
                Verdict.REGRESSED,
                reason,
                "cpu",
                name or "e",
                symptom=reason,
                command=name,
            ),
        )
    )
    ElementTree.fromstring(junit_xml(run))
    markdown_text(run)
    Tags(page(run))


def test_report_writes_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "in" / "a.json", RunResult(RUN.results[:1]))
    write_results(tmp_path / "in" / "b.json", RunResult(RUN.results[1:]))
    places = [tmp_path / name for name in ("page.html", "summary.md", "junit.xml", "merged.json")]
    out = [f"--out={place}" for place in places]
    assert cli.main(["report", str(tmp_path / "in"), *out]) == 1
    assert "<html" in places[0].read_text()
    assert places[1].read_text() == markdown_text(RUN)
    ElementTree.parse(places[2])
    assert read_results(places[3]).results == RUN.results
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path / "in"), "--format", "markdown"]) == 1
    assert capsys.readouterr().out.strip() == markdown_text(RUN).strip()
    assert cli.main(["report", str(tmp_path / "in"), "--format", "html"]) == 1
    output = capsys.readouterr()
    assert (
        output.out.startswith("<!") and output.out.rstrip().endswith("</html>") and output.err == ""
    )
    assert cli.main(["report", str(tmp_path / "in"), "--out", "/proc/no/page.html"]) == 2
    assert read_results(tmp_path / "in" / "a.json").results == RUN.results[:1]
