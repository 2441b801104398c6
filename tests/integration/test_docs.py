"""The documentation agrees with the code: generated parts are up to date, commands exist, and links
lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit import verdict_table
from pytest_vllm_regress.answers.audit.boundaries import boundaries
from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.surveys.conformance import open_runs
from tests.helpers import ROOT
from tests.helpers.cases import project_cases
from tools import bisections, docs, findings, parser_table

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def commands(page: Path) -> list[str]:
    """Return the arguments of every vllm-regress command in the shell examples of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        line.partition("vllm-regress")[2]
        for line in lines
        if re.match(r"(\S*/)?vllm-regress ", line)
    ]


@pytest.mark.parametrize("page", docs.PAGES)
def test_generated_pages_are_up_to_date(page: str) -> None:
    text = (docs.DOCS / page).read_text()
    assert docs.PAGES[page]() == text, "run `python -m tools.docs`"


def test_a_stale_page_is_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    monkeypatch.setattr(docs, "PAGES", {"one.md": lambda: "new\n", "two.md": lambda: "same\n"})
    (tmp_path / "one.md").write_text("old\n")
    (tmp_path / "two.md").write_text("same\n")
    with pytest.raises(typer.Exit) as exit:
        docs.main(check=True)
    assert exit.value.exit_code == 1 and (tmp_path / "one.md").read_text() == "old\n"
    with pytest.raises(typer.Exit):
        docs.main()
    assert (tmp_path / "one.md").read_text() == "new\n"
    assert capsys.readouterr().out == "docs/one.md: out of date\ndocs/one.md: written\n"


def test_a_campaign_against_parsers_is_recorded() -> None:
    record: dict[str, Any] = {"0.11.2": {"seed": 0, "parsers": {"two": {"asked": 9, "wrong": {}}}}}
    head = {"key": {"version": "0.11.2", "seed": 3, "parsers": ["one"]}}
    counts = {"at once: call lost": 2, "whole: call lost": 1}
    steps = [
        {f"0 {label}": {"label": label, "asked": 5, "counts": counts}}
        for label in ("one", "one, format 2")
    ]
    parser_table.add_campaign(record, map(json.dumps, [head, *steps]))
    wrong = {"at once": {"call lost": 4}, "whole": {"call lost": 2}}
    one, two = {"asked": 10, "wrong": wrong}, {"asked": 9, "wrong": {}}
    assert record == {"0.11.2": {"seed": 3, "parsers": {"two": two, "one": one}}}


@pytest.mark.parametrize(
    "page", [findings.API, findings.ENGINES, findings.PARSERS], ids=lambda page: page.name
)
def test_every_published_finding_was_looked_up(page: findings.FindingsPage) -> None:
    published = page.published()
    assert published
    assert [
        one.name
        for one in published
        if not one.upstream.words and "by_design" not in page.looked_up(one)
    ] == []
    assert [one.name for one in published if page.with_upstream(one) != one] == []


def test_the_smallest_finding_of_a_kind_is_kept() -> None:
    published = findings.SCHEMAS.published()
    chosen = findings.smallest([*published, *published])
    assert 0 < len(chosen) <= len(published)
    assert findings.smallest(chosen) == chosen


def test_what_was_found_again_is_there() -> None:
    listed = findings.found_again()
    assert {path.name for path in findings.FOUND_AGAIN.glob("*.json")} == {
        entry.finding.name for entry in listed
    }
    cases = {entry.report for entry in listed if not entry.report.startswith("https://")}
    assert [case for case in cases if not (ROOT / "cases" / case).is_dir()] == []


def test_every_unreported_finding_has_one_cause() -> None:
    causes = findings.causes()
    named = [name for cause in causes for name in cause["findings"]]
    assert sorted(named) == sorted(findings.unreported())
    assert len({cause["what"] for cause in causes}) == len(causes)


def keys_of(value: object, prefix: str = "") -> set[str]:
    """Return the keys of a result file as the reference writes them, without those of tables by
    name."""
    if isinstance(value, list):
        return set().union(*(keys_of(entry, f"{prefix}[]") for entry in value))
    if not isinstance(value, dict) or prefix.endswith((".versions", ".gpu", ".node", ".parts")):
        return set()
    named = {f"{prefix}.{key}".removeprefix("."): entry for key, entry in value.items()}
    return set(named).union(*(keys_of(entry, name) for name, entry in named.items()))


def test_every_key_of_a_result_file_is_explained() -> None:
    explained = set(
        re.findall(
            r"^\| `([\w.\[\]]+)` \|",
            (ROOT / "docs/reference/file-formats.md").read_text(),
            flags=re.MULTILINE,
        )
    )
    for file in sorted(ROOT.glob("cases/*/observations.json"))[:20]:
        assert keys_of(json.loads(file.read_text())) <= explained, file


def test_traced_commits_are_the_ones_that_the_cases_name() -> None:
    cases = {case.id: case for case in project_cases()}
    traced = list(bisections.traced())
    assert traced
    assert {
        case_id: problem
        for case_id, commit in traced
        if (problem := commit.problem(cases[case_id]))
    } == {}


def test_recorded_verdicts_contradict_no_proof_and_no_range() -> None:
    cases = project_cases()
    recorded = verdict_table.read_file(ROOT / "cases" / verdict_table.FILE)
    assert set(recorded) <= {case.id for case in cases}
    for case in cases:
        proven = {
            entry.environment: entry
            for entry in proof.read_proof(case.directory / proof.FILE).environments
        }
        for entry in recorded.get(case.id, ()):
            assert entry.verdict.expected or entry.verdict is Verdict.INCONCLUSIVE, (case.id, entry)
            same = proven.get(entry.environment)
            assert same is None or same.device != entry.device or same.verdict is entry.verdict, (
                case.id,
                entry,
            )


def test_no_end_of_a_range_is_contradicted_by_a_run() -> None:
    cases = project_cases()
    table = verdict_table.read_table(cases)
    ends = [end for case in cases for end in boundaries(case, table)]
    assert len(ends) > len(cases)
    assert [str(end) for end in ends if end.contradicted] == []


@pytest.mark.parametrize(
    "command", sorted({command for page in PAGES for command in commands(page)})
)
def test_every_command_in_the_documentation_can_be_parsed(command: str) -> None:
    """The command is not run. An unknown name, option or value is an error."""
    arguments, _ = cli.split_arguments(shlex.split(command, comments=True))
    group: Any = typer.main.get_command(cli.app)
    context = group.make_context("vllm-regress", arguments, resilient_parsing=True)
    while hasattr(context.command, "resolve_command"):
        words = [*context._protected_args, *context.args]
        name, found, rest = context.command.resolve_command(context, words)
        context = found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 500


def test_the_readme_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that need no environment with vLLM."""
    project = tmp_path / "path" / "to" / "project"
    project.mkdir(parents=True)
    (project / "app.py").write_text(
        "from vllm import LLM, SamplingParams\n"
        "from vllm.sampling_params import StructuredOutputsParams\n\n"
        'llm = LLM("Qwen/Qwen2.5-7B-Instruct", swap_space=4)\n'
        'params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "object"}))\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    outputs = {shlex.split(command)[1]: (command, output) for command, output in blocks}
    for name in ("audit", "uses"):
        command, expected = outputs[name]
        cli.main(shlex.split(command)[1:])
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert [line for line in expected.splitlines() if line not in printed] == []


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {
        (index.parent / link).resolve()
        for link in re.findall(r"\]\(([^)#\s]+\.md)", index.read_text())
    }
    assert [
        page
        for page in PAGES
        if page.is_relative_to(ROOT / "docs") and page not in {*linked, index}
    ] == []


def test_what_the_pages_say_of_gpus_has_records() -> None:
    """What is said of an engine that started there needs a step in the ledger that did."""
    records = ROOT / "docs" / "records"
    on_gpus = [
        run
        for run in open_runs(records / "conformance.jsonl").entries.values()
        if run.device == "gpu"
    ]
    assert all(run.gpu for run in on_gpus)
    ledger = (records / "gpu" / "ledger.jsonl").read_text().splitlines()[1:]
    outcomes = {
        (named[1], entry["outcome"])
        for line in ledger
        for name, entry in json.loads(line).items()
        if (named := re.match(r"step (\S+) \|", name))
    }
    page = (ROOT / "docs" / "reference" / "devices.md").read_text()
    for words, step in (
        ("engine with a forged model was ready", "first-start"),
        ("a fork can use CUDA", "fork"),
        ("A killed engine core fails its request", "core-killed"),
        ("After a killed pytest", "pytest-killed"),
        ("memory (4.5 GiB) was free again", "release"),
        ("while another process holds half of the free memory", "tenant"),
        ("Two pytests at once take turns", "two-at-once"),
    ):
        assert (words in " ".join(page.split())) == ((step, "done") in outcomes), step
