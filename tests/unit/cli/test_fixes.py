"""What commands say about the fixes of upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.fixes.index import fix_index
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cli.front_door import main

LOG = """\
INFO 06-01 16:46:04 [api_server.py:1] vLLM API server version 0.22.0
ERROR 06-01 16:47:04 [core.py:1165] Traceback (most recent call last):
ERROR 06-01 16:47:04 [core.py:1165]   File "/x/dist-packages/vllm/model_executor/models/qwen2_5_vl.py", line 410, in forward
ERROR 06-01 16:47:04 [core.py:1165]     context_layer = self.attn(
ERROR 06-01 16:47:04 [core.py:1165] RuntimeError: cu_seqlens_q must be on CUDA
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(LOG)
    return path


def test_explain_lists_fixes_that_the_version_lacks(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["explain", str(log)])
    output = capsys.readouterr().out
    assert "not proven: read them before you upgrade" in output
    assert "vllm#44264" in output and output.count("possibly:") <= 5


def test_explain_gives_fixes_as_json_and_uses_what_is_said_about_the_failure(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["explain", str(log), "--about", "Qwen3-Omni fails to load", "--format", "json"])
    first, *_ = json.loads(capsys.readouterr().out)["fixes"]
    assert (first["fix"], first["release"]) == ("vllm#44264", "0.24.0")


def test_explain_suggests_nothing_without_a_version(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(LOG.partition("\n")[2])
    main(["explain", str(log)])
    assert "not proven" not in capsys.readouterr().out


def test_show_says_what_a_change_did_and_which_case_is_about_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "vllm#44483"]) == 0
    output = capsys.readouterr().out
    assert "0.24.0 and later" in output and "wake_up" in output and "vllm-44395" in output
    assert main(["show", "vllm#99999999"]) == 2


@pytest.mark.parametrize(("place", "status"), [(":_handle_stopped_request", 0), (":nothing", 2)])
def test_show_lists_the_releases_that_changed_a_function(
    place: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", f"vllm/v1/core/sched/scheduler.py{place}", "--format", "json"]) == status
    if status:
        assert "no known change of vLLM changes the function nothing" in capsys.readouterr().err
        return
    first, *others = json.loads(capsys.readouterr().out)
    assert (first["release"], first["fix"]) == ("0.15.0", "vllm#28973")
    assert {"release": "0.31.0", "fix": "", "title": ""} in others


def test_show_lists_the_changes_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "vllm/v1/core/sched/scheduler.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 50 and any("pull request not known" in line for line in lines)


def test_compare_counts_the_fixes_in_between(capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "0.20.0", "0.21.0"])
    assert "fixes in between (not proven here): " in capsys.readouterr().out


def test_audit_counts_and_lists_the_fixes_that_concern_a_deployment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["audit", "vllm==0.20.0", "--serve", "vllm serve Qwen/Qwen3-8B --enable-lora"]
    main(command)
    assert "later fixes of upstream touch what this deployment uses (" in capsys.readouterr().out
    main(["-v", *command])
    assert "vllm#39935  0.28.0" in capsys.readouterr().out


def test_compare_names_what_upstream_corrected_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["compare", "0.23.0", "0.24.0"])
    output = capsys.readouterr().out
    assert "upstream corrected it " in output
    assert "broken by #41184 (in 0.25.0; corrects vllm#41184)" in output
    main(["compare", "0.23.0", "0.24.0", "--format", "json"])
    first, *_ = json.loads(capsys.readouterr().out)["upstream_regressions"]
    assert (first["fix"], first["of"]) == ("vllm#47031", ["vllm#41184"])


def test_compare_newer_says_how_settled_a_release_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "0.22.0", "--newer"]) == 0
    output = capsys.readouterr().out
    assert "2026-05-27" in output and "1 of them are in 0.22.1" in output
    assert main(["compare", "0.22.0", "--newer", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["patch_releases"] == ["0.22.1"] and answer["weeks"][0]["taken"]


def test_compare_newer_takes_one_release_that_the_history_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "0.22.0"]) == 2
    assert main(["compare", "0.22.0", "0.23.0", "--newer"]) == 2
    for release in ("0.6.0", "0.31.0"):
        assert main(["compare", release, "--newer"]) == 2
        assert f"does not have what came after vllm {release}" in capsys.readouterr().err


def test_new_fills_a_case_from_the_record_of_a_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = str(tmp_path / "cases")
    assert main(["--cases", cases, "new", "--from", "vllm#44483"]) == 0
    case = load_case(tmp_path / "cases" / "vllm-44483" / "case.toml")
    assert case.title == "Fix illegal memory access from a forward during a partial wake_up"
    assert case.affected_text() == "vllm <0.24.0"
    assert case.fixed_by == ("https://github.com/vllm-project/vllm/pull/44483",)
    assert (case.evidence.affected, case.evidence.fixed) == (("vllm-0.23.0",), ("vllm-0.24.0",))
    readme = (case.directory / "README.md").read_text()
    assert "`vllm/v1/engine/core.py` (`wake_up`, `run_busy_loop`)" in readme
    assert "first in 0.24.0" in readme


def test_a_title_loses_the_tags_of_its_fix_and_a_known_fix_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cases", str(tmp_path), "new", "--from", "vllm#16863"]) == 0
    assert "vllm-17173 (n results requested, one returned) is of the same report or fix" in (
        capsys.readouterr().err
    )
    title = load_case(tmp_path / "vllm-16863" / "case.toml").title
    assert title == "fix issue with n>1 sampling on v1 requests overriding each other"


def test_new_names_the_tests_of_upstream_and_keeps_what_is_given(tmp_path: Path) -> None:
    fix = next(entry for entry in fix_index().fixes if entry.tests and entry.first)
    command = ["--cases", str(tmp_path), "new", "44", "--from", fix.name, "--title", "My words"]
    assert main([*command, "--affected", ">=0.7,<0.8"]) == 0
    case = load_case(tmp_path / "vllm-44" / "case.toml")
    assert (case.title, case.affected_text()) == ("My words", "vllm >=0.7,<0.8")
    assert case.evidence.affected == ()
    assert (
        f"Upstream's own tests of it: `{fix.tests[0]}`"
        in (case.directory / "README.md").read_text()
    )


def test_new_takes_one_origin_that_exists(tmp_path: Path) -> None:
    assert main(["--cases", str(tmp_path), "new", "--from", "vllm#99999999"]) == 2
    finding = ["--finding", "f.json", "--from", "vllm#44483"]
    assert main(["--cases", str(tmp_path), "new", *finding]) == 2
