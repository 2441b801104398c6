"""The warm agent does not use CUDA, which would break its forks.

A fake libcuda counts initializations and device queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.placement import Placement
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.target import inspect
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
from tests.helpers.environments import require_environment
from tests.helpers.fake_gpus import A100, MACHINES, cuda_folder, nvml_folder
from tests.integration.gpus.conftest import Answer, answer  # noqa: F401  # a fixture

pytestmark = pytest.mark.engine
ENVIRONMENTS = (
    "vllm-0.7.3",
    "vllm-0.8.5",
    "vllm-0.9.2",
    "vllm-0.10.2",
    "vllm-0.11.2",
    "vllm-0.33.0",
)
PROBE = """
import contextlib

def touch():
    import torch
    with contextlib.suppress(RuntimeError):
        torch.cuda.init()
"""
Warm = Callable[..., Agent]


@pytest.fixture
def warm(
    answer: Answer,  # noqa: F811
    run_dir: RunDir,
    tmp_path: Path,
    user_caches: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Warm]:
    """Return a function that starts an environment's warm agent as a run on GPUs does, on a machine
    with eight GPUs.

    CUDA calls are logged to tmp_path/cuda.
    """
    agents: list[Agent] = []
    answers = answer(MACHINES["8 alike"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MACHINES["8 alike"].cards[2].uuid)

    def start(name: str, changes: Mapping[str, str] | None = None) -> Agent:
        require_environment(name)
        with EnvironmentCache().lease(resolve(name)) as python:
            target = inspect(name, python, "gpu")
            environment = {
                "VLLM_REGRESS_DEVICE": "gpu",
                **Placement(lambda line: None).agent_environment(target),
                "LD_LIBRARY_PATH": f"{cuda_folder()}:{nvml_folder()}",
                "FAKE_NVML": str(answers),
                "FAKE_CUDA_LOG": str(tmp_path / "cuda"),
                **(changes or {}),
            }
            agent = Agent(python, run_dir, environment=environment, name=f"agent-{len(agents)}")
            agents.append(agent)
            agent.start(Deadline.after("import", 120))
            agent.warm(Deadline.after("import", 600))
            return agent

    yield start
    for agent in agents:
        agent.stop()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_warming_calls_no_cuda_function(name: str, warm: Warm, tmp_path: Path) -> None:
    agent = warm(name)
    assert agent.import_error is None
    calls = tmp_path / "cuda"
    calls.touch()
    assert calls.read_text() == ""
    assert agent.spawns == ""
    (tmp_path / "probe.py").write_text(PROBE)
    child = agent.start_child("probe", Deadline.after("start", 60))
    assert child.start_method == "fork"
    child.request(
        "call",
        Deadline.after("probe", 60),
        file=str(tmp_path / "probe.py"),
        function="touch",
        arguments={},
    )
    child.kill()
    assert "cuInit" in calls.read_text()  # the fake does count calls


def test_an_agent_that_initialized_cuda_spawns_and_says_so(warm: Warm, tmp_path: Path) -> None:
    """Importing vLLM 0.11.2 with the name of a MIG slice initializes CUDA.

    A real run never gives the agent such a name.
    """
    require_environment("vllm-0.11.2")
    agent = warm("vllm-0.11.2", {"CUDA_VISIBLE_DEVICES": A100.slice_uuid(0)})
    assert "cuInit" in (tmp_path / "cuda").read_text()
    assert agent.spawns == "importing vLLM initialized CUDA"
    child = agent.start_child("probe", Deadline.after("start", 120))
    assert child.start_method == "spawn"
    child.kill()
