"""``executor="ray-2-nodes"``: vLLM's placement group has a bundle on each of two Ray nodes, and no
raylet outlives the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.errors import ChildDied
from pytest_vllm_regress.util.deadline import Deadline
from tests.faults.cells import CellRecorder, survivors
from tests.helpers import shared_memory

pytestmark = pytest.mark.engine
SPEC = EngineSpec.create(tensor_parallel_size=2, executor="ray-2-nodes", generation="V0")
PROBE = """
def nodes(engine):
    import ray
    addresses = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes()}
    (group,) = (each for each in ray.util.placement_group_table().values() if each["state"] == "CREATED")
    return [addresses[node] for node in group["bundles_to_node_id"].values()]
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session(
        Settings(environments=("vllm-0.8.5",), device="sim"),
        lambda phase, seconds: Deadline.after(phase, seconds or 240),
    )
    yield session
    session.close()


def start(session: Session) -> Engine:
    running: Engine = session.start(
        "offline", session.target("vllm-0.8.5"), SPEC, user="test", fresh=True
    )
    return running


def daemons(engine: Engine) -> list[psutil.Process]:
    return [
        process
        for process in engine.child.processes()
        if process.name() in ("raylet", "gcs_server")
    ]


def test_bundles_and_workers_are_on_two_nodes(session: Session, tmp_path: Path) -> None:
    engine = start(session)
    engine.probe_file = tmp_path / "probe.py"
    engine.probe_file.write_text(PROBE)
    assert sorted(engine.call("nodes")) == ["127.0.0.1", "127.0.0.2"]
    workers = [
        process
        for process in engine.child.processes()
        if "RayWorkerWrapper" in " ".join(process.cmdline())
    ]
    assert len({worker.ppid() for worker in workers}) == 2
    (answer,) = engine.generate("Hello", {"max_tokens": 8, "ignore_eos": True})
    assert len(answer["outputs"][0]["token_ids"]) == 8
    nodes = daemons(engine)
    assert sorted(process.name() for process in nodes) == ["gcs_server", "raylet", "raylet"]
    assert engine.stop() == ()
    assert not [process for process in nodes if process_tree.is_alive(process)]


def test_a_killed_engine_leaves_nothing(session: Session) -> None:
    before = shared_memory.unmapped_files()
    killed = start(session)
    assert len(daemons(killed)) == 3
    assert killed.child.pid is not None
    psutil.Process(killed.child.pid).kill()
    with pytest.raises(ChildDied):
        killed.check()
    agents = frozenset(agent.pid for agent in session.agents.started if agent.pid is not None)
    assert survivors(session.run, CellRecorder(), spared=agents, shared=before) == ()
