"""The lines of an audit: one for each failure, ranked by what a deployment can show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_vllm_regress import cli
from tests.helpers import ROOT

SERVE = (
    "vllm serve MODEL --tensor-parallel-size 2 --enable-auto-tool-choice --tool-call-parser hermes"
)


def audit(*arguments: str) -> int:
    return cli.main(["--cases", str(ROOT / "cases"), "audit", "vllm==0.8.4", *arguments])


def test_a_failure_is_one_line_of_at_most_100_characters_worst_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert audit() == 1
    lines = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "  vllm-" in line and "to do" not in line
    ]
    assert len(lines) > 30
    assert max(map(len, lines)) <= 100
    assert lines[0].split("  ")[1] == "engine death"
    assert lines[-1].split("  ")[1] == "leak"


def test_verbose_prints_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("-v") == 1
    output = capsys.readouterr().out
    assert "  workaround:  --tokenizer-pool-size 0; or an environment" in output


def test_serve_ranks_the_failures_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit("--serve", SERVE) == 1
    output = capsys.readouterr().out
    headings = [
        line.partition(":")[0]
        for line in output.splitlines()
        if line.startswith(("reach", "unknown", "not"))
    ]
    assert sorted(headings, key=["reachable", "unknown", "not reachable"].index) == headings
    assert "\nreachable: --tool-call-parser is hermes\n" in output
    assert "\nnot reachable: --pipeline-parallel-size is 1, it needs 2 or more\n" in output
    assert audit("--serve", SERVE, "--format", "json") == 1
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    reach = {finding["case"]: finding["relevance"]["reach"] for finding in target["findings"]}
    assert (reach["vllm-31501"], reach["vllm-7557"], reach["vllm-15080"]) == (
        "reachable",
        "not reachable",
        "unknown",
    )


def test_the_headline_counts_what_the_deployment_can_reach(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reach = [finding["relevance"]["reach"] for finding in _findings(capsys, SERVE)]
    shown, unknown, others = map(reach.count, ("reachable", "unknown", "not reachable"))
    audit("--serve", SERVE)
    assert (
        f"\n{shown} documented failures that this deployment can reach, {unknown} unknown; "
        f"{others} not reachable\n"
    ) in capsys.readouterr().out
    audit()
    assert f"\n{len(reach)} documented failures\n" in capsys.readouterr().out


def test_audit_and_compare_agree_about_a_release_without_a_lock(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli.main(["--cases", str(ROOT / "cases"), "audit", "vllm==0.10.1", "--format", "json"])
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    found = {finding["case"] for finding in target["findings"]}
    cli.main(
        ["--cases", str(ROOT / "cases"), "compare", "0.10.1", "vllm==0.10.1", "--format", "json"]
    )
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert found == {change["case"] for change in changes if change["effect"] == "leaves"}
    assert "xgrammar-800" in found


def test_failures_that_cannot_show_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    reachable = [
        finding
        for finding in _findings(capsys, SERVE)
        if finding["relevance"]["reach"] != "not reachable"
    ]
    ignored = [word for finding in reachable for word in ("--ignore", finding["case"])]
    assert audit("--serve", SERVE, *ignored) == 0
    assert audit(*ignored) == 1


def _findings(capsys: pytest.CaptureFixture[str], serve: str) -> list[dict[str, Any]]:
    audit("--serve", serve, "--format", "json")
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["targets"][0]["findings"]
    return findings
