"""Which cases a deployment can show, from the source of their tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.deployments.configuration import read_deployments
from pytest_vllm_regress.answers.deployments.relevance import Reach, relevance
from tests.helpers.cases import project_cases

CASES = {case.id: case for case in project_cases()}
REACHABLE, UNKNOWN, NOT = Reach.REACHABLE, Reach.UNKNOWN, Reach.NOT_REACHABLE


def reach(case_id: str, arguments: str, version: str, **variables: str) -> Reach:
    assigned = " ".join(f"{name}={value}" for name, value in variables.items())
    deployments = read_deployments(f"{assigned} vllm serve M {arguments}")
    return relevance(CASES[case_id], {"vllm": version}, deployments).reach


@pytest.mark.parametrize(
    ("case_id", "version", "arguments", "expected"),
    [
        ("vllm-11737", "0.8.4", "-tp 2", REACHABLE),
        ("vllm-11737", "0.8.4", "", NOT),
        ("vllm-11737", "0.8.4", "-tp $TP", UNKNOWN),
        ("vllm-11737", "0.8.4", "--tensor-parallel 2", REACHABLE),
        ("vllm-11737", "0.8.4", "--tensor-parallel-sizee 2", UNKNOWN),
        ("vllm-7557", "0.7.3", "-pp 2", REACHABLE),
        ("vllm-7557", "0.8.4", "-pp 2", UNKNOWN),
        ("vllm-7557", "0.8.4", "-tp 2", NOT),
        ("vllm-16140", "0.8.4", "", NOT),  # the control leg's value
        ("vllm-31501", "0.9.2", "--tool-call-parser hermes", REACHABLE),
        ("vllm-31501", "0.9.2", "--tool-call-parser mistral", NOT),
        ("vllm-31501", "0.9.2", "", NOT),
        ("vllm-31501", "0.9.2", "--config x.yaml", UNKNOWN),
        ("vllm-48020", "0.9.2", "--tool-call-parser functiongemma", REACHABLE),
        ("vllm-35230", "0.9.2", "--reasoning-parser qwen3", REACHABLE),
        ("vllm-32006", "0.11.2", "--tool-call-parser mistral", REACHABLE),
        ("vllm-32006", "0.11.2", "", NOT),
        ("vllm-29747", "0.11.2", "--scheduling-policy priority", REACHABLE),
        ("vllm-29747", "0.11.2", "", NOT),
        ("vllm-30931", "0.11.2", "--enable-lora", REACHABLE),
        ("vllm-30931", "0.11.2", "--enable-lora --no-enable-prefix-caching", NOT),
        ("vllm-30931", "0.11.2", "", NOT),
        (
            "vllm-24885",
            "0.13.0",
            "",
            REACHABLE,
        ),  # the test's own scheduler only makes it show at once
        ("vllm-50529", "0.33.0", "", REACHABLE),
        ("vllm-46240", "0.17.0", "", NOT),
        ("vllm-46240", "0.17.0", '--kv-transfer-config \'{"kv_connector": "X"}\'', REACHABLE),
        ("vllm-49250", "0.33.0", "", UNKNOWN),  # a fixture makes its configuration
        ("vllm-24232", "0.8.4", "", REACHABLE),
        ("vllm-17173", "0.8.4", "", UNKNOWN),
        ("vllm-15080", "0.8.4", "", UNKNOWN),
        ("gpustack-1317", "0.8.4", "--task embed", REACHABLE),
        ("gpustack-1317", "0.8.4", "--tool-call-parser hermes", NOT),
        ("vllm-48115", "0.8.4", "", REACHABLE),
        ("vllm-48115", "0.8.4", "--guided-decoding-backend outlines", UNKNOWN),
    ],
)
def test_the_configuration_decides(
    case_id: str, version: str, arguments: str, expected: Reach
) -> None:
    assert reach(case_id, arguments, version) is expected


def test_the_engine_that_a_variable_selects_decides() -> None:
    assert reach("vllm-25794", "", "0.8.4", VLLM_USE_V1="0") is NOT
    assert reach("vllm-25794", "", "0.8.4", VLLM_USE_V1="1") is REACHABLE
    assert reach("vllm-7557", "-pp 2", "0.8.4", VLLM_USE_V1="0") is REACHABLE
    assert reach("vllm-50529", "", "0.33.0", VLLM_USE_V1="0") is REACHABLE, "it has no V0 engine"


def test_the_most_relevant_deployment_counts_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("vllm serve A\nvllm serve B -tp 2\n")
    answer = relevance(
        CASES["vllm-11737"], {"vllm": "0.8.4"}, read_deployments(str(tmp_path / "start.sh"))
    )
    assert answer.reach is REACHABLE
    assert answer.reason.endswith("start.sh: --tensor-parallel-size is 2")
