"""Texts written for GitHub quote what comes from result files, cases and clones: it has no effect
there."""

from __future__ import annotations

import datetime
import html
import re
from pathlib import Path
from typing import Literal

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from pytest_vllm_regress.answers.audit.audit import audit, to_sarif
from pytest_vllm_regress.answers.audit.matching import find
from pytest_vllm_regress.answers.audit.package_lists import parse_list
from pytest_vllm_regress.cases.observation import Observation
from pytest_vllm_regress.cases.proofs.proof import BisectedCommit, Proof, write_proof
from pytest_vllm_regress.cases.proofs.rejudge import load_observations
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.scaffold import Draft, GitHubReport, create_case
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.environments.git import Commit, Repository
from pytest_vllm_regress.environments.sources import PROJECTS
from pytest_vllm_regress.errors import Kind, Masked, Part
from pytest_vllm_regress.history.algorithm import CandidateState
from pytest_vllm_regress.history.candidates import CandidateResult
from pytest_vllm_regress.history.commits import CommitGroup, CommitHistory, Culprit, FirstRelease
from pytest_vllm_regress.output.export.issue import upstream_report
from pytest_vllm_regress.output.export.standalone import (
    NotExportable,
    StandaloneScript,
    export_script,
)
from pytest_vllm_regress.output.formats import markdown_text
from pytest_vllm_regress.output.pages.run_page import page
from pytest_vllm_regress.util.text import markdown_block
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile, project_cases

LIVE = (
    "thanks @user, see #12 and owner/repo#1",
    "introduced by 0123456789abcdef0123456789abcdef01234567",
    "![x](http://evil.invalid/a.png) [x](http://evil.invalid)",
    "www.evil.invalid or me@evil.invalid",
    "<!-- hidden <img src=x>",
    "``` @user",
    "a ```` b ``` c ` @user #1",
    "\\` @user",
    "~~~",
    "- [ ] @user",
    "| @user |",
    "GH-1 :tada:",
)
_REFERENCE = re.compile(r"@|#\d|GH-|www\.|\b[0-9a-f]{7,}\b|evil", re.I)


def effects(markdown: str) -> list[str]:
    """Return what GitHub would act on: references in text outside code, links without an address of
    the project, images and HTML."""
    texts = []
    pending = list(MarkdownIt("commonmark").enable("table").parse(markdown))
    inside_link = False
    for token in pending:
        for part in token.children or ([token] if token.type == "html_block" else []):
            if part.type == "link_open":
                inside_link = True
                if (
                    re.match(
                        r"https://(github\.com/vllm-project/vllm|example\.org)/",
                        str(part.attrs["href"]),
                    )
                    is None
                ):
                    texts.append(str(part.attrs["href"]))
            inside_link = inside_link and part.type != "link_close"
            if part.type in ("image", "html_inline", "html_block"):
                texts.append(part.content)
            if part.type == "text" and not inside_link:
                text = re.sub(r"https://github\.com/vllm-project/vllm/\S+", "", part.content)
                texts += [text] if _REFERENCE.search(text) else []
    return texts


def result(text: str) -> RunResult:
    """Return a run with the text wherever a report quotes it."""
    versions = {"vllm": "0.8.4", text: text}
    one = TestResult(
        "demo",
        text,
        Verdict.REGRESSED,
        text,
        "sim",
        text,
        versions,
        symptom=text,
        command=text,
        not_expected_because=text,
    )
    return RunResult((one,), (text,), text)


@pytest.mark.parametrize("text", LIVE)
def test_the_text_for_an_upstream_report_quotes(tmp_path: Path, text: str) -> None:
    case = CaseFile(
        title=text, upstream=["https://example.org/![x](https://evil.invalid/@user)"]
    ).write(tmp_path)
    for cases in ((case,), ()):
        content = page(result(text), cases)
        (report,) = re.findall(
            r'<div class="copy"><pre tabindex="0">(### .*?)</pre>', content, re.DOTALL
        )
        assert effects(html.unescape(report)) == []
        assert text in html.unescape(report)


@pytest.mark.parametrize(
    "text", [*LIVE, "```\n@user #1\n", "x\n`````\n![x](http://evil.invalid)\n```", "~~~\n@user"]
)
def test_a_block_of_code_is_not_left(text: str) -> None:
    assert effects(markdown_block(text)) == []
    assert effects(markdown_block(text, "sh")) == []


@pytest.mark.parametrize("text", LIVE)
def test_the_summary_of_a_run_quotes(text: str) -> None:
    assert effects(markdown_text(result(text))) == []


@pytest.mark.parametrize("text", LIVE)
def test_the_text_for_a_culprits_thread_quotes(tmp_path: Path, text: str) -> None:
    case = CaseFile(title=text).write(tmp_path)
    day = datetime.datetime(2025, 3, 1, tzinfo=datetime.UTC)
    commits = [Commit(letter * 40, (), day, day, text) for letter in "abc"]
    history = CommitHistory(
        PROJECTS["vllm"],
        Repository(tmp_path),
        (CommitGroup(commits[0]), CommitGroup(commits[2])),
        3,
    )
    result = CandidateResult(CandidateState.SKIPPED, text)
    culprit = Culprit(
        case,
        history,
        commits[2],
        commits[0],
        is_fix=True,
        doubtful=(commits[1],),
        result=result,
        parent_result=result,
        release=FirstRelease(text, text),
    )
    assert effects(culprit.markdown(lambda commit: f"'{text}+vllm@{commit.id}")) == []


@pytest.mark.parametrize("text", LIVE)
def test_rules_for_code_scanning_and_pages_of_new_cases_quote(tmp_path: Path, text: str) -> None:
    case = CaseFile(title=text, keys='workaround = "none @user"', affected="<0.8.5").write(
        tmp_path / "one"
    )
    inventory = parse_list(b"vllm==0.8.4\n", "list")
    assert find(inventory, [case])
    (rule,) = to_sarif([audit(inventory, [case], None, ())])["runs"][0]["tool"]["driver"]["rules"]
    assert effects(rule["help"]["markdown"]) == []
    new = create_case(
        tmp_path / "two",
        GitHubReport("vllm-project/vllm", 1),
        Draft(title=text, affected="=== @user"),
    )
    assert effects((new.directory / "README.md").read_text()) == []


@pytest.mark.parametrize("form", ["bug", "ci-failure"])
@pytest.mark.parametrize("text", LIVE)
def test_the_texts_of_vllms_forms_quote(
    tmp_path: Path, text: str, form: Literal["bug", "ci-failure"]
) -> None:
    address = "https://example.org/![x](https://evil.invalid/@user)"
    case = CaseFile(title=text, upstream=[address], keys=f'fixed-by = ["{address}1"]').write(
        tmp_path
    )
    commits = tuple(
        BisectedCommit(
            "fix", text[:100], "a" * 40, "b" * 40, text, place, 2, 1, 1.0, text, "0" * 16
        )
        for place in (text, address)
    )
    write_proof(case, Proof(case="demo", fingerprint="0" * 16, environments=(), commits=commits))
    observed = Observation(Kind.EXCEPTION, text, parts={Part.EXCEPTION: Masked(text)})
    one = TestResult(
        "demo", text, Verdict.REPRODUCED, text, "sim", text, {text: text}, observation=observed
    )
    script = StandaloneScript(text, text, one)
    report = upstream_report(form, script, case, [], ROOT / "locks", text)
    own = re.sub(
        r"\n- \[ \] Make sure .*|\[[x ]\]",
        "",
        report.replace("<details>", "").replace("</details>", ""),
    )
    own = re.sub(
        r"<summary>.*?</summary>|a{40}|b{40}", "", own
    )  # ids of commits are links on purpose
    assert effects(own) == []


@pytest.mark.parametrize(
    "versions",
    [
        {"a @ https://evil.invalid/a.whl #": "1"},
        {"-r evil.txt": "1"},
        {"a\n": "1"},
        {"a": "1; python_version > '3'"},
        {"a": "1 @ https://evil.invalid/a.whl"},
        {"": "1"},
        {"a": ""},
    ],
    ids=ascii,
)
def test_recorded_versions_become_requirements_only_if_they_are_versions_of_packages(
    versions: dict[str, str],
) -> None:
    case = next(case for case in project_cases() if case.id == "vllm-17173")
    assert '"vllm==' in export_script(case).text
    with pytest.MonkeyPatch.context() as patch:
        runs = [
            RunResult(
                tuple(
                    replace(result, versions={**result.versions, **versions})
                    for result in run.results
                )
            )
            for run in load_observations(case)
        ]
        patch.setattr(
            "pytest_vllm_regress.output.export.standalone.load_observations", lambda case: runs
        )
        with pytest.raises(NotExportable, match="which is no version of a package"):
            export_script(case)
