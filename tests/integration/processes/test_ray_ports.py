"""Two Ray processes that choose a port at the same time."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.processes.agent import TARGET_SITE
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import ray_clusters

NODE = """
class Node:
    def _get_unused_port(self, allocated_ports=None):
        return next(port for port in (*{given_away}, *range(65000, 65010)) if port not in (allocated_ports or ()))
"""
DRIVER = """
import sys
from vllm_regress_target.dialect import ray_clusters

if sys.argv[1] == "import first":
    import ray._private.node
ray_clusters.watch()
ray_clusters.watch()
from ray._private.node import Node

print(Node()._get_unused_port(), Node()._get_unused_port({65001}), flush=True)
sys.stdin.read()
"""
Drive = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Start a driver that has chosen two ports and holds them until its input ends."""
    node = NODE.format(given_away=list(ray_clusters._ephemeral_ports()[:2]))
    package = tmp_path / "site" / "ray" / "_private"
    package.mkdir(parents=True)
    for file, text in (
        ("__init__.py", ""),
        ("_private/__init__.py", ""),
        ("_private/node.py", node),
    ):
        (package.parent / file).write_text(text)
    started: list[subprocess.Popen[str]] = []

    def start(when: str = "import later", **variables: str) -> subprocess.Popen[str]:
        path = os.pathsep.join((str(package.parent.parent), str(TARGET_SITE)))
        around = {
            **os.environ,
            "PYTHONPATH": path,
            "RAY_TMPDIR": str(tmp_path / "run"),
            **variables,
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", DRIVER, when],
                env=around,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.communicate(timeout=60)


def chosen(driver: subprocess.Popen[str]) -> list[int]:
    assert driver.stdout is not None
    return [int(word) for word in driver.stdout.readline().split()]


@pytest.mark.parametrize("when", ["import first", "import later"])
def test_a_chosen_port_is_not_chosen_again_while_its_owner_lives(drive: Drive, when: str) -> None:
    first = drive(when)
    assert chosen(first) == [65000, 65000]
    second = drive(when)
    assert chosen(second) == [65001, 65002]  # and Ray's own refusals count
    first.communicate(timeout=60)
    assert chosen(drive(when)) == [65000, 65000]


def test_without_a_writable_folder_ray_chooses_its_ports(drive: Drive, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere" / "run")
    assert [chosen(drive(RAY_TMPDIR=nowhere)) for _ in range(2)] == [[65000, 65000]] * 2


def test_a_ray_that_chooses_in_another_way_is_left_alone() -> None:
    class Old:
        def _get_unused_port(self, close_on_exit: bool = True) -> tuple[int, None]:
            return 65000, None

    plain = Old._get_unused_port
    ray_clusters.guard(Old)
    assert Old._get_unused_port is plain


@pytest.mark.parametrize(
    ("text", "ports"), [("32768\t60999\n", range(32768, 61000)), ("1024 65535", ()), ("none", ())]
)
def test_what_the_kernel_gives_away(
    monkeypatch: pytest.MonkeyPatch, text: str, ports: range | tuple[()]
) -> None:
    """Enough ports must remain above this range for Ray."""
    monkeypatch.setattr(ray_clusters, "open", lambda _: io.StringIO(text), raising=False)
    assert ray_clusters._ephemeral_ports() == ports
