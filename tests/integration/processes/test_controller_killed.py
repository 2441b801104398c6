"""When the controller is killed, nothing that it started survives."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.abandoned import remove_abandoned
from pytest_vllm_regress.util.rundir import RunDir

PROBE = Path(__file__).with_name("probe.py")
CONTROLLER = """
import sys, time
from pathlib import Path
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.rundir import RunDir
run = RunDir.create()
agent = Agent(Path(sys.executable), run)
agent.start(Deadline.after("import", 60))
child = agent.start_child("probe", Deadline.after("start", 60))
deadline = Deadline.after("probe", 60)
print(run.tag, run.path, child.request("call", deadline, file=sys.argv[1], function="leave_grandchild", arguments={"hold_output": False}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no other run remove what is abandoned. The path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.usefixtures("own_temporary_folder")
def test_sigkill_of_the_controller_ends_everything() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CONTROLLER), str(PROBE)],
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout is not None
        tag, path, grandchild = controller.stdout.readline().split()
        processes = [*process_tree.with_tag(tag), psutil.Process(int(grandchild))]
        assert len(processes) >= 4
        controller.kill()
    assert not process_tree.wait_until_gone(processes, 60)
    own = RunDir.create()
    assert any(path in line for line in remove_abandoned())
    assert not Path(path).exists()
    assert own.path.exists()  # a living controller's directory is not touched
    own.remove()
