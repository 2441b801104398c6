"""Which part of vLLM a process is, by its title or by its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import psutil
import pytest

from pytest_vllm_regress.engines.running import list_processes, names_in_log
from pytest_vllm_regress.util import masking

FRONT = 10
PYTHON = "/usr/bin/python -m vllm_regress_target.agent 5"


@dataclasses.dataclass(frozen=True)
class FakeProcess:
    pid: int
    parent: int
    command: str = PYTHON
    program: str = "python"
    gone: bool = False

    def name(self) -> str:
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)
        return self.program

    def ppid(self) -> int:
        return self.parent

    def cmdline(self) -> list[str]:
        return self.command.split()


def roles(*processes: FakeProcess, core_in_front: bool = False) -> list[tuple[str, str]]:
    listed = list_processes(processes, FRONT, "server", core_in_front=core_in_front)  # type: ignore[arg-type]
    return [(info.role, info.name) for info in listed.values()]


def test_titles_name_the_roles_whatever_the_parents() -> None:
    titles = ("APIServer_1", "DPCoordinator", "EngineCore_DP0", "Worker_TP1_EP1")
    processes = [
        FakeProcess(11 + number, 1, f"VLLM::{title}") for number, title in enumerate(titles)
    ]
    ray = FakeProcess(20, 1, "ray::RayWorkerWrapper.execute_method")
    assert [
        role for role, _ in roles(FakeProcess(FRONT, 1, "VLLM::APIServer"), *processes, ray)
    ] == [*("server", "server", "coordinator", "core", "worker", "worker")]
    assert roles(ray) == [("worker", "ray::RayWorkerWrapper.execute_method")]


def test_a_rank_that_is_appended_to_the_title_of_a_core_makes_a_worker() -> None:
    titles = ("EngineCore", "EngineCore_TP0", "EngineCore_PP1_TP0")
    tree = [FakeProcess(11 + i, FRONT, f"VLLM::{title}") for i, title in enumerate(titles)]
    assert [role for role, _ in roles(*tree)] == ["core", "worker", "worker"]


def test_without_titles_the_place_below_the_front_process_counts() -> None:
    front, core, worker = FakeProcess(FRONT, 1), FakeProcess(11, FRONT), FakeProcess(12, 11)
    assert roles(front, core, worker) == [
        ("server", "python"),
        ("core", "python"),
        ("worker", "python"),
    ]
    assert [role for role, _ in roles(front, core, worker, core_in_front=True)] == [
        "server",
        "worker",
        "worker",
    ]


def test_of_the_processes_that_our_fork_server_has_forked_the_first_is_the_core() -> None:
    fork_server = FakeProcess(11, FRONT, program="fork-server")
    launchers = [
        FakeProcess(pid, FRONT, "/p/python -SEB /tmp/spawn-10.py -c x --multiprocessing-fork")
        for pid in (12, 14)
    ]
    forked = [FakeProcess(13, 11), FakeProcess(15, 11)]
    assert [role for role, _ in roles(FakeProcess(FRONT, 1), fork_server, *launchers, *forked)] == [
        *("server", "helper", "helper", "helper", "core", "worker")
    ]


def test_a_process_that_has_ended_meanwhile_is_left_out_and_command_lines_are_masked() -> None:
    secret = masking.register("hf_" + "q9" * 17)
    listed = list_processes(
        [FakeProcess(11, 1, gone=True), FakeProcess(FRONT, 1, f"vllm serve --token {secret}")],  # type: ignore[list-item]
        FRONT,
        "server",
        core_in_front=False,
    )
    (info,) = listed.values()
    assert secret not in info.command
    assert str(info.ended()) == "server 10 (python, ended)"


@pytest.mark.parametrize(
    "command", ["ray::IDLE", "/x/bin/python -c from multiprocessing.resource_tracker import main"]
)
def test_helpers_of_ray_and_python(command: str) -> None:
    assert [role for role, _ in roles(FakeProcess(11, FRONT, command))] == ["helper"]


def test_titles_name_the_data_parallel_rank() -> None:
    titles = (
        "EngineCore_DP0",
        "EngineCore_DP1",
        "Worker_DP1_TP0",
        "EngineCore",
        "DPCoordinator",
        "APIServer_1",
    )
    processes = [
        FakeProcess(11 + number, 1, f"VLLM::{title}") for number, title in enumerate(titles)
    ]
    listed = list_processes(processes, FRONT, "server", core_in_front=False)  # type: ignore[arg-type]
    assert [info.rank for info in listed.values()] == [0, 1, 1, None, None, None]


def test_a_process_without_a_title_has_its_name_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "\x1b[1;36m(APIServer pid=10)\x1b[0;0m \x1b[1;36m(EngineCore_DP1 pid=12)\x1b[0;0m INFO rank 1\n(x pid=)\n"
    )
    core, other = FakeProcess(11, FRONT, "VLLM::EngineCore_DP0"), FakeProcess(12, FRONT)
    listed = list_processes(
        [core, other],  # type: ignore[list-item]
        FRONT,
        "server",
        core_in_front=False,
        logged=names_in_log(log),
    )
    assert [(info.role, info.name, info.rank) for info in listed.values()] == [
        ("core", "VLLM::EngineCore_DP0", 0),
        ("core", "EngineCore_DP1", 1),
    ]
    assert names_in_log(tmp_path / "none") == {}


def test_beside_cores_with_titles_what_the_front_process_starts_is_an_api_server() -> None:
    fork_server = FakeProcess(11, FRONT, program="fork-server")
    cores = [FakeProcess(20 + rank, FRONT, f"VLLM::EngineCore_DP{rank}") for rank in (0, 1)]
    workers = [FakeProcess(30, 20, "VLLM::Worker"), FakeProcess(31, 21)]
    servers = [FakeProcess(40, 11), FakeProcess(41, 11)]
    listed = [
        role for role, _ in roles(FakeProcess(FRONT, 1), fork_server, *cores, *workers, *servers)
    ]
    assert listed == ["server", "helper", "core", "core", "worker", "worker", "server", "server"]
