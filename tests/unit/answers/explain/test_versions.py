"""Versions that a log names, and how they affect the certainty of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.explain.explanation import Certainty
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.model import Case
from tests.helpers.cases import CaseFile
from tests.unit.answers.explain.conftest import BANNER, DIED, certainty, explained


def test_a_version_in_the_range_makes_it_certain(death: Case) -> None:
    (finding,) = explained(BANNER.format("0.8.4") + "INFO: fine\n" + DIED + DIED, death).findings
    assert (finding.certainty, finding.lines, finding.count) == (Certainty.CERTAIN, (3, 4), 2)
    assert finding.versions == {"vllm": "0.8.4"}


def test_a_version_outside_the_range_is_said(death: Case) -> None:
    (finding,) = explained(BANNER.format("0.8.5") + DIED, death).findings
    assert finding.certainty is Certainty.OUTSIDE
    assert finding.reason == "vllm 0.8.5 is not in <0.8.5"


def test_without_a_version_it_is_only_likely(death: Case) -> None:
    (finding,) = explained(DIED, death).findings
    assert finding.certainty is Certainty.LIKELY
    assert "does not name the version of vllm" in finding.reason


@pytest.mark.parametrize(
    "line",
    [
        "vllm==0.8.4",
        " + vllm==0.8.4",
        "Successfully installed ray-2.43.0 vllm-0.8.4 zmq-1.0",
        "Downloading vllm-0.8.4-cp38-abi3-manylinux1_x86_64.whl (300 MB)",
        "vllm                 0.8.4",
        "2026-01-01T00:00:00.1Z INFO 01-01 00:00:00 [api_server.py:1043] vLLM API server version 0.8.4",
        "vLLM Version: 0.8.4",
        "- **vLLM version**: 0.8.4",
        "I use vllm v0.8.4 with two GPUs",
        "vLLM 0.8.4, CUDA 12.4",
        "image: example/cuda12.8-vllm0.8.4",
        "2026-01-01 00:00:00,123 - vllm.engine - INFO - Initializing an LLM engine (v0.8.4) with config",
        "[pip3] vllm==0.8.4",
        "vLLM Version: 0.8.4.dev34+g5bfe0dea7",
        "image: docker.io/vllm/vllm-openai:v0.8.4",
        '  File "/x/environments/vllm-0.8.4-e4feb5527e/lib/python3.11/site-packages/vllm/a.py", line 1, in f',
        '  File "/x/site-packages/vllm-0.8.4.dist-info/METADATA"',
    ],
)
def test_versions_are_read_where_a_log_names_them(line: str, death: Case) -> None:
    assert certainty(f"{line}\n{DIED}", death) is Certainty.CERTAIN


@pytest.mark.parametrize(
    "line",
    [
        "  Uninstalling vllm-0.8.4:",
        " - vllm==0.8.4",
        "tool 1 requires vllm==0.8.4, but you have none",
        "vllm>=0.8.4",
        "vLLM Version: 0.1.dev3151+g31c7178",
    ],
)
def test_versions_that_are_not_installed_do_not_count(line: str, death: Case) -> None:
    assert certainty(f"{line}\n{DIED}", death) is Certainty.LIKELY


def test_the_version_named_last_before_the_line_counts(death: Case) -> None:
    log = BANNER.format("0.8.5") + BANNER.format("0.8.4") + DIED + BANNER.format("0.9.2")
    assert certainty(log, death) is Certainty.CERTAIN
    assert certainty(DIED + BANNER.format("0.8.4"), death) is Certainty.CERTAIN


def test_each_container_has_its_own_version(death: Case) -> None:
    """Regression: the version that was named last was used for every container."""
    log = "".join(f"engine-{name}  | {line}" for name, line in (
        ("b", BANNER.format("0.8.5")), ("a", BANNER.format("0.8.4")), ("b", DIED), ("a", DIED)
    ))  # fmt: skip
    found = {finding.versions["vllm"]: finding for finding in explained(log, death).findings}
    assert {version: finding.lines for version, finding in found.items()} == {
        "0.8.5": (3,),
        "0.8.4": (4,),
    }
    assert (
        found["0.8.5"].certainty is Certainty.OUTSIDE
        and found["0.8.4"].certainty is Certainty.CERTAIN
    )
    outside = explained(
        "pip: Successfully installed vllm-0.8.4\n" + f"engine-c  | {DIED}", death
    ).findings
    assert outside[0].versions == {"vllm": "0.8.4"}, "a line of no container counts for all"


def test_a_failure_before_and_after_an_upgrade_is_two_results(death: Case) -> None:
    found = explained(
        BANNER.format("0.8.4") + DIED + BANNER.format("0.8.5") + DIED + DIED, death
    ).findings
    assert [(finding.certainty, finding.lines) for finding in found] == [
        (Certainty.CERTAIN, (2,)),
        (Certainty.OUTSIDE, (4, 5)),
    ]


@pytest.mark.parametrize(
    "line", ["(APIServer pid=7) INFO 11-22 02:28:08 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.8.4",
             "INFO 11-22 02:28:08 [utils.py:299] vLLM server version 0.8.4, serving model x"]
)  # fmt: skip
def test_the_first_lines_of_current_servers_name_the_version(line: str, death: Case) -> None:
    assert certainty(f"{line}\n{DIED}", death) is Certainty.CERTAIN


def test_a_package_that_the_log_does_not_name_is_missing_and_not_outside(tmp_path: Path) -> None:
    case = CaseFile(kind="exception", pattern="is gone", affected="<0.8.5").write(tmp_path)
    text = case.directory / "case.toml"
    content = text.read_text().replace("[affected]", '[affected]\ntransformers = ">=5"')
    text.write_text(content)
    case = load_case(text)
    assert certainty(DIED, case) is Certainty.LIKELY
    assert certainty("transformers==5.1\n" + DIED, case) is Certainty.POSSIBLE
    assert certainty("transformers==4.1\n" + DIED, case) is Certainty.OUTSIDE


@pytest.mark.parametrize(
    ("version", "expected", "place"),
    [
        ("0.8.3.dev12+g5bfe0dea7", Certainty.CERTAIN, "between 0.8.2 and 0.8.3"),
        ("0.8.5rc2.dev34+g5bfe0dea7", Certainty.LIKELY, "between 0.8.4 and 0.8.5"),
        ("0.10.1rc2.dev34+g5bfe0dea7.d20250801", Certainty.OUTSIDE, "between 0.10.0 and 0.10.1"),
        ("9.9.0.dev1", Certainty.OUTSIDE, "after "),
    ],
)
def test_a_development_version_is_placed_between_releases(
    version: str, expected: Certainty, place: str, death: Case
) -> None:
    explanation = explained(f"Initializing a V1 LLM engine (v{version}) with\n{DIED}", death)
    (finding,) = explanation.findings
    assert finding.certainty is expected
    assert f"vllm {version} comes {place}" in finding.reason
    (named,) = explanation.versions
    assert (named.version, len(named.between) > 0) == (version, True)
