"""Real environments on a cluster give the proven verdicts: a case that starts its own Ray, one of
the main job, and a matrix."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.proofs import proof
from pytest_vllm_regress.cases.verdict import Verdict, combine
from tests.cluster.conftest import Cluster
from tests.cluster.matrices import LEFT_S, named, page, verdicts
from tests.cluster.record import keep
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(1800)]
FAST = ["21360", "24478", "27701", "28806", "31501", "35230", "48416", "48852", "48922", "56556"]
"""Cases of vLLM that need no engine: an import, and less than a second each."""
WIDE = ["vllm-0.8.4", "vllm-0.8.5", "vllm-0.9.2", "vllm-0.10.2", "vllm-0.11.2", "vllm-0.33.0"]


@pytest.fixture
def own_cache() -> bool:
    return False


@pytest.mark.parametrize(
    ("case", "environment"),
    [
        ("vllm-16140", "vllm-0.8.4"),
        ("vllm-16140", "vllm-0.8.5"),
        ("lmfe-124", "vllm-0.8.4-lmfe-0.10.3"),
        ("lmfe-124", "vllm-0.8.5"),
    ],
)
def test_the_cluster_gives_the_proven_verdict(
    cluster: Cluster, tmp_path: Path, case: str, environment: str
) -> None:
    require_environment(environment)
    result = tmp_path / "r.json"
    done = cluster.run(
        cluster.command(
            ROOT / "cases",
            "run",
            case,
            "--on",
            cluster.address,
            "--env",
            environment,
            "--out",
            str(result),
        ),
        seconds=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = page(result)
    (alone,) = [
        proven.verdict
        for proven in proof.read_proof(ROOT / "cases" / case / proof.FILE).environments
        if proven.environment == environment
    ]
    assert combine(Verdict(cell["verdict"]) for cell in cells) is alone, done.stdout
    assert all(cell["node"]["node"] for cell in cells)
    cluster.wait_until_clean(LEFT_S)


def test_ten_cases_in_six_environments(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for environment in WIDE:
        require_environment(environment)
    cases, seconds, pages = [f"vllm-{number}" for number in FAST], {}, {}
    for name, where in (("jobs", ["--jobs", "2"]), ("on", ["--on", cluster.address])):
        result, begun = tmp_path / f"{name}.json", time.monotonic()
        arguments = [*where, "--fresh", *cases, *named(WIDE), "--out", str(result)]
        done = cluster.run(cluster.command(ROOT / "cases", "matrix", *arguments), seconds=1500)
        assert done.returncode == 0, done.stdout + done.stderr
        seconds[name], pages[name] = time.monotonic() - begun, page(result)
    assert len({(cell["environment"], cell["case_id"]) for cell in pages["on"]}) == len(FAST) * len(
        WIDE
    )
    assert verdicts(pages["on"]) == verdicts(pages["jobs"])
    assert len({cell["node"]["node"] for cell in pages["on"]}) > 1
    cluster.wait_until_clean(LEFT_S)
    keep(
        request.config,
        "matrix",
        {"cases": cases, "environments": WIDE} | {n: round(s) for n, s in seconds.items()},
    )
