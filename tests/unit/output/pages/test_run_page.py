"""The page of a run, as one file and as a folder: required content, and hostile texts that stay
text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.results import RunResult, TestResult, write_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.output.pages.rendering import LIST, broken_links, write_folder
from pytest_vllm_regress.output.pages.run_page import page, pages
from tests.helpers import hostile
from tests.unit.output.test_formats import CASES, RUN, Tags, result


def words(html: str) -> str:
    return " ".join(" ".join(Tags(html).words).split())


def test_page_shows_case_by_version_oldest_first() -> None:
    html = page(RUN, CASES, now=0.0)
    head = html[html.index("<thead>") : html.index("</thead>")]
    assert re.findall(r">(vllm-[\d.]+)<", head) == ["vllm-0.8.4", "vllm-0.9.2", "vllm-0.10.2"]
    text = words(html)
    for expected in (
        "n results requested, one returned",
        "1 of 3 cells are not as expected: REGRESSED vllm-17173 in vllm-0.9.2",
        "1970-01-01",
        "expected 8 results, got 1",
        "Describe the bug",
        "simulated",
    ):
        assert expected in text
    tags = Tags(html)
    links = [attributes.get("href") or "" for tag, attributes in tags.elements if tag == "a"]
    assert "https://github.com/vllm-project/vllm/issues/17173" in links
    anchors = {attributes.get("id") for _, attributes in tags.elements}
    assert all(link[1:] in anchors for link in links if link.startswith("#"))


def test_rows_with_something_unexpected_come_first() -> None:
    fine = TestResult("a-case", "t", Verdict.FIXED, "", "sim", "vllm-0.8.4", {"vllm": "0.8.4"})
    body = page(RunResult((fine, *RUN.results)), CASES).partition("<tbody>")[2]
    assert body.index(">vllm-17173</a>") < body.index(">a-case</a>")


def test_only_cells_of_another_device_name_it() -> None:
    on_gpu = TestResult("a-case", "t", Verdict.FIXED, "", "gpu", "vllm-0.8.4", {"vllm": "0.8.4"})
    table = (
        page(RunResult((*RUN.results, on_gpu)), CASES)
        .partition("<tbody>")[2]
        .partition("</tbody>")[0]
    )
    assert "<small>gpu</small>" in table
    assert "<small>sim</small>" not in table


@pytest.mark.parametrize(
    "html", [page(hostile.run(), CASES), *pages(hostile.run(), CASES).values()], ids=len
)
def test_a_page_loads_nothing(html: str) -> None:
    for tag, attributes in Tags(html).elements:
        assert "src" not in attributes, (tag, attributes)
        assert "style" not in attributes, (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "img", "svg", "form", "base"), tag
        assert not [name for name in attributes if name.startswith("on")], attributes
        assert tag != "a" or (attributes["href"] or "").startswith(
            ("#", "https://", "../", "cases/", "environments/")
        )


@pytest.mark.parametrize("html", [page(hostile.run()), *pages(hostile.run()).values()], ids=len)
def test_hostile_texts_stay_text(html: str) -> None:
    assert hostile.SCRIPT not in html
    assert html.count("<script>") == html.count("<style>") == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066]", html)
    assert len(html) < 3_000_000


def test_hostile_texts_are_shown() -> None:
    html = page(hostile.run())
    assert "&lt;script&gt;" in html
    assert "{{ 7 * 7 }}" in html


def test_a_page_without_results_says_so() -> None:
    assert "No verdicts" in page(RunResult())


@pytest.mark.parametrize(
    "run", [RUN, hostile.run(), RunResult()], ids=["plain", "hostile", "empty"]
)
def test_all_links_of_a_folder_lead_somewhere(run: RunResult) -> None:
    written = pages(run, CASES)
    assert broken_links(written) == []
    assert len(written) == 1 + len({r.case_id for r in run.results}) + len(
        {r.environment for r in run.results}
    )


def test_the_overview_of_a_folder_has_no_evidence() -> None:
    written = pages(RUN, CASES)
    assert "expected 8 results" not in written["index.html"]
    assert "expected 8 results" in written["cases/vllm-17173.html"]
    assert "cases/vllm-17173.html#vllm-0.9.2.sim" in written["index.html"]


@pytest.mark.parametrize("name", ["../../outside", "a/b", "con\x00", ".git", "A", "x" * 300])
def test_names_from_results_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    write_folder(
        tmp_path / "pages",
        pages(RunResult((TestResult(name, "t", Verdict.FIXED, "", "sim", name),))),
    )
    outside = [
        path for path in tmp_path.rglob("*.html") if not path.is_relative_to(tmp_path / "pages")
    ]
    assert outside == []
    assert len(list((tmp_path / "pages").rglob("*.html"))) == 3


def test_a_broken_link_is_found() -> None:
    files = {
        "a.html": '<a href="b.html#there">x</a><a href="c.html">y</a>',
        "b.html": '<p id="here">',
    }
    assert list(map(str, broken_links(files))) == [
        "a.html: b.html#there: no such place in that page",
        "a.html: c.html: no such page",
    ]


def test_pages_that_are_gone_are_removed_and_nothing_else(tmp_path: Path) -> None:
    write_folder(tmp_path, {"index.html": "1", "cases/old.html": "1"})
    (tmp_path / "mine.txt").write_text("mine")
    write_folder(tmp_path, {"index.html": "2"})
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        LIST,
        "index.html",
        "mine.txt",
    ]
    assert (tmp_path / "index.html").read_text() == "2"


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(UsageError, match="has other files"):
        write_folder(tmp_path, {"index.html": "ours"})
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.mark.parametrize("names", [{"../outside": ["a"]}, {"/etc/x": []}, ["index.html"], {"a": 1}])
def test_a_forged_list_removes_nothing_outside(tmp_path: Path, names: object) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / LIST).write_text(json.dumps(names))
    with pytest.raises(UsageError):
        write_folder(tmp_path / "pages", {"index.html": "ours"})
    assert (tmp_path / "outside").exists()


def test_report_writes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "a.json", RUN)
    assert cli.main(["report", str(tmp_path / "a.json"), "--out", str(tmp_path / "pages")]) == 1
    assert f"pages: {tmp_path}/pages/index.html" in capsys.readouterr().out
    assert (tmp_path / "pages" / "cases" / "vllm-17173.html").is_file()
    assert (tmp_path / "pages" / "environments" / "vllm-0.9.2.html").is_file()


def test_many_columns_show_signs_with_names() -> None:
    html = page(
        RunResult(tuple(result(f"vllm-0.9.{number}", Verdict.FIXED) for number in range(12)))
    )
    assert html.partition("<tbody>")[2].count('aria-label="FIXED">✓</a>') == 12
