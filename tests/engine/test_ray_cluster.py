"""With ``RAY_ADDRESS``, an engine uses the running cluster and leaves it running."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import psutil
import pytest

from pytest_vllm_regress.engines.ports import lease_port
from pytest_vllm_regress.engines.processes.agent import TARGET_SITE
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.util.deadline import Deadline

pytestmark = pytest.mark.engine
ENV = "vllm-0.8.5"
DAEMONS = {"raylet", "gcs_server"}


@pytest.fixture
def target() -> Iterator[tuple[Session, Target]]:
    session = Session(
        Settings(environments=(ENV,), device="sim"),
        lambda phase, seconds: Deadline.after(phase, seconds or 600),
    )
    yield session, session.target(ENV)
    session.close()


@contextlib.contextmanager
def cluster(target: Target) -> Iterator[tuple[str, psutil.Process]]:
    """Start a head node as described in docs/explanation/version-differences.md.

    Yield its address and its process.
    """
    folder = tempfile.mkdtemp(prefix="vr-")  # a short path, because Ray creates sockets below it
    port = lease_port()
    command = [
        str(target.python),
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={port.number}",
        "--num-cpus=2",
        "--num-gpus=2",
        "--include-dashboard=false",
        "--disable-usage-stats",
        f"--temp-dir={folder}",
        "--node-ip-address=127.0.0.1",
    ]
    variables = {
        "PYTHONPATH": str(TARGET_SITE),
        "VLLM_REGRESS_DEVICE": "sim",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
    ) as started:
        head = psutil.Process(started.pid)
        try:
            assert started.stdout is not None
            assert any("Ray runtime started" in line for line in started.stdout)
            yield f"127.0.0.1:{port.number}", head
        finally:
            for process in [head, *head.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            port.release()
            shutil.rmtree(folder, ignore_errors=True)


def test_a_running_cluster_is_used_and_left_running(
    target: tuple[Session, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, environment = target
    with cluster(environment) as (address, head):
        monkeypatch.setenv("RAY_ADDRESS", address)
        spec = EngineSpec.create(tensor_parallel_size=2, executor="ray", generation="V0")
        for _ in range(2):
            engine = session.start("offline", environment, spec, user="test", fresh=True)
            (answer,) = engine.generate("Hello", {"max_tokens": 8, "ignore_eos": True})
            assert len(answer["outputs"][0]["token_ids"]) == 8
            assert not DAEMONS & {process.name() for process in engine.child.processes()}
            assert any(
                "RayWorkerWrapper" in "".join(child.cmdline())
                for child in head.children(recursive=True)
            )
            assert engine.stop() == ()
            assert {child.name() for child in head.children(recursive=True)} >= DAEMONS
