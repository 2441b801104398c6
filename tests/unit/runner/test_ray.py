"""Parts of the Ray executor that need no cluster: splitting, retries, resources of a node, and the
environment variables of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.runner.batch import Batch, Needs
from pytest_vllm_regress.runner.plan import BATCH_S, split_batches
from pytest_vllm_regress.runner.ray_cluster import Node
from pytest_vllm_regress.runner.ray_executor import (
    InFlightBatch,
    results_of_given_up,
    retry_lost,
)
from pytest_vllm_regress.runner.wire import BatchReply, BatchRequest
from pytest_vllm_regress.util.sizes import GIB
from tests.helpers.cases import CaseFile


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    return tuple(CaseFile(f"case-{number}").write(tmp_path / "cases") for number in range(12))


def test_every_case_is_in_one_part_and_parts_fill_the_cluster(cases: tuple[Case, ...]) -> None:
    batches = [Batch(name, cases, {}) for name in ("a", "b")]

    def seconds(case: Case, environment: str) -> float:
        return 50.0

    for slots, least in ((1, 2), (4, 8), (64, 20)):
        parts = list(split_batches(batches, slots, seconds))
        assert sorted(
            (part.environment, case.id) for _, part in parts for case in part.cases
        ) == sorted((batch.environment, case.id) for batch in batches for case in batch.cases)
        assert all(
            whole in batches and part.environment == whole.environment for whole, part in parts
        )
        assert len(parts) >= least
        assert max(len(part.cases) * 50.0 for _, part in parts) <= BATCH_S[1]


def test_a_batch_whose_machine_fails_is_retried_once_and_elsewhere(cases: tuple[Case, ...]) -> None:
    batch = Batch("a", cases[:3], {})
    request = BatchRequest(
        "a",
        cases=tuple(case.id for case in batch.cases),
        files={f"{c.id}/x": "" for c in batch.cases},
    )
    first = InFlightBatch(batch, batch, request)
    done = TestResult(cases[0].id, "t", Verdict.FIXED, "passed", "sim", "a")
    running = first.after(
        BatchReply(run=RunResult((done,)), last=False, node={"node": "n1"}), now=5.0
    )
    assert (running.node, running.heard_at) == ("n1", 5.0)
    retry = retry_lost(running, "node n1 died")
    assert retry is not None
    assert (retry.avoid, retry.node, retry.failures) == ("n1", "", ("node n1 died",))
    assert (
        retry.request.cases
        == tuple(case.id for case in retry.part.cases)
        == (cases[1].id, cases[2].id)
    )
    assert set(retry.request.files) == {f"{case.id}/x" for case in cases[1:3]}
    assert retry_lost(retry, "node n2 died") is None
    results = results_of_given_up(retry, "node n2 died").results
    assert [(result.case_id, result.verdict) for result in results] == [
        (case.id, Verdict.INCONCLUSIVE) for case in cases[1:3]
    ]
    assert "node n1 died; then node n2 died" in results[0].reason


def test_a_node_fits_as_many_batches_as_its_scarcest_resource() -> None:
    node = Node("abcdef0123", "10.0.0.1", {"CPU": 8.0, "memory": 20.0 * GIB, "GPU": 1.0})
    assert node.name == "10.0.0.1/abcdef01"
    assert node.fits(Needs()) == 3
    assert node.fits(Needs(gpus=1)) == 1
    assert node.fits(Needs(gpus=2)) == 0
    assert Node("a", "b", {"CPU": 8.0}).fits(Needs()) == 0


def test_a_batch_sees_no_variables_of_ray_or_the_harness() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from pytest_vllm_regress.runner.ray_node import without_ray

    variables = {
        "RAY_ADDRESS": "x",
        "RAY_JOB_ID": "1",
        "PYTHONPATH": "/ray",
        "PYTHONBREAKPOINT": "ray",
        "HOME": "/h",
    }
    assert without_ray(variables) == {"HOME": "/h"}
    allocator = {"LD_PRELOAD": f"{ray.__path__[0]}/core/libjemalloc.so"}
    assert without_ray(allocator) == {}
    named = {
        "LD_PRELOAD": "/lib/x.so",
        "RAY_JEMALLOC_LIB_PATH": "/lib/x.so",
        "MALLOC_CONF": "a",
        "RAY_JEMALLOC_CONF": "a",
    }
    assert without_ray(named) == {}
    users = {"LD_PRELOAD": "/lib/faketime.so", "MALLOC_CONF": "b"}
    assert without_ray(users) == users


def test_errors_of_ray_are_described() -> None:
    errors = pytest.importorskip(
        "ray", reason="Ray is not installed: pip install -e '.[ray]'"
    ).exceptions
    from pytest_vllm_regress.runner.ray_cluster import describe_error

    assert (
        describe_error(errors.OutOfMemoryError("x"), "n1")
        == "node n1 ran out of memory, and Ray killed the worker"
    )
    assert describe_error(errors.NodeDiedError("x"), "n1") == "node n1 died"
    assert describe_error(errors.WorkerCrashedError(), "n1") == "the worker on node n1 was killed"
    assert describe_error(errors.RaySystemError("first\nsecond"), "").startswith(
        "a node: RaySystemError:"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["matrix", "--on", "ray", "--jobs", "2"], "--jobs and --on contradict"),
        (["matrix", "--on", "ray,gpus=0"], "allowed is ADDRESS[,gpus=N]"),
        (["bisect", "case-0", "--on", ",gpus=2"], "allowed is ADDRESS[,gpus=N]"),
        (["bisect", "case-0", "--on", "ray", "--commits"], "commits need the clone"),
    ],
)
def test_contradicting_options_are_refused(
    cases: tuple[Case, ...], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(cases[0].directory.parent)
    assert cli.main(["--cases", root, *arguments, "--env", "vllm-0.8.4"]) == 2
    assert message in capsys.readouterr().err
