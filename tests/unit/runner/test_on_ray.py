"""What of the carrier for Ray needs no cluster: how jobs are cut, what fits a node, what a cell's process must not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.runner.cell import Needs
from pytest_vllm_regress.runner.on_ray.cluster import Node
from pytest_vllm_regress.runner.runner import Job
from pytest_vllm_regress.runner.shards import BATCH_S, batches
from pytest_vllm_regress.util.sizes import GIB
from tests.helpers.cases import CaseFile


@pytest.fixture
def cases(tmp_path: Path) -> tuple[Case, ...]:
    return tuple(CaseFile(f"case-{number}").write(tmp_path / "cases") for number in range(12))


def test_every_cell_is_in_one_batch_and_batches_share_the_cluster(cases: tuple[Case, ...]) -> None:
    jobs = [Job(name, cases, {}) for name in ("a", "b")]

    def seconds(case: Case, environment: str) -> float:
        return 50.0

    for slots, least in ((1, 2), (4, 8), (64, 20)):
        made = list(batches(jobs, slots, seconds))
        assert sorted((part.environment, case.id) for _, part in made for case in part.cases) == sorted(
            (job.environment, case.id) for job in jobs for case in job.cases
        )
        assert all(whole in jobs and part.environment == whole.environment for whole, part in made)
        assert len(made) >= least
        assert max(len(part.cases) * 50.0 for _, part in made) <= BATCH_S[1]


def test_a_node_has_room_for_what_it_has_all_of() -> None:
    node = Node("abcdef0123", "10.0.0.1", {"CPU": 8.0, "memory": 20.0 * GIB, "GPU": 1.0})
    assert node.name == "10.0.0.1/abcdef01"
    assert node.fits(Needs()) == 3
    assert node.fits(Needs(gpus=1)) == 1
    assert node.fits(Needs(gpus=2)) == 0
    assert Node("a", "b", {"CPU": 8.0}).fits(Needs()) == 0


def test_a_cell_sees_neither_the_cluster_nor_the_harness() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    from pytest_vllm_regress.runner.on_ray.node import scrubbed

    around = {"RAY_ADDRESS": "x", "RAY_JOB_ID": "1", "PYTHONPATH": "/ray", "PYTHONBREAKPOINT": "ray", "HOME": "/h"}
    assert scrubbed(around) == {"HOME": "/h"}
    allocator = {"LD_PRELOAD": f"{ray.__path__[0]}/core/libjemalloc.so"}
    assert scrubbed(allocator) == {}
    named = {
        "LD_PRELOAD": "/lib/x.so",
        "RAY_JEMALLOC_LIB_PATH": "/lib/x.so",
        "MALLOC_CONF": "a",
        "RAY_JEMALLOC_CONF": "a",
    }
    assert scrubbed(named) == {}
    users = {"LD_PRELOAD": "/lib/faketime.so", "MALLOC_CONF": "b"}
    assert scrubbed(users) == users


def test_what_ray_raises_is_told_in_words() -> None:
    theirs = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'").exceptions
    from pytest_vllm_regress.runner.on_ray.cluster import in_words

    assert in_words(theirs.OutOfMemoryError("x"), "n1") == "node n1 ran out of memory, and Ray killed the worker"
    assert in_words(theirs.NodeDiedError("x"), "n1") == "node n1 died"
    assert in_words(theirs.WorkerCrashedError(), "n1") == "the worker on node n1 was killed"
    assert in_words(theirs.RaySystemError("first\nsecond"), "").startswith("a node: RaySystemError:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["matrix", "--on", "ray", "--jobs", "2"], "--jobs and --on contradict"),
        (["run", "--on", "ray", "-n", "2"], "-n and --on contradict"),
        (["matrix", "--gpus", "2"], "--gpus goes with --on"),
        (["bisect", "case-0", "--gpus", "2"], "--gpus goes with --on"),
        (["bisect", "case-0", "--on", "ray", "--commits"], "commits need the clone"),
    ],
)
def test_what_does_not_go_together_is_refused(
    cases: tuple[Case, ...], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(cases[0].directory.parent)
    assert cli.main(["--cases", root, *arguments, "--env", "vllm-0.8.4"]) == 2
    assert said in capsys.readouterr().err
