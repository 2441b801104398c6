"""Descriptions of what real processes wait for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from pytest_vllm_regress.engines.processes.waits import Waits

PIPE = """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    os.close(read)
    time.sleep(600)
os.close(write)
print("up", flush=True)
os.read(read, 1)
"""
TCP = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    client = socket.create_connection(server.getsockname())
    server.close()
    time.sleep(600)
ours, _ = server.accept()
print("up", flush=True)
{wait}
"""
CHILD = """
import os, time
if os.fork() == 0:
    time.sleep(600)
print("up", flush=True)
os.wait()
"""


@contextmanager
def process_tree_of(program: str) -> Iterator[list[psutil.Process]]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        parent = psutil.Process(process.pid)
        yield [parent, *parent.children()]
    finally:
        for member in [*psutil.Process(process.pid).children(), psutil.Process(process.pid)]:
            member.kill()
        process.communicate()


def wait_description(processes: list[psutil.Process], accepts: Callable[[str], bool]) -> str:
    """Return the description of the first process once it sleeps."""
    until = time.monotonic() + 60
    while not accepts(text := Waits(processes).describe(processes[0])) and time.monotonic() < until:
        time.sleep(0.01)  # there is no event for another process falling asleep
    return text


@pytest.mark.parametrize(
    ("program", "call"),
    [
        (PIPE, "in read of pipe held by"),
        (TCP.format(wait="ours.recv(1)"), "in recvfrom of socket held by"),
        (
            TCP.format(wait="import select; p = select.epoll(); p.register(ours, 1); p.poll()"),
            "over 1 descriptors; among them of socket held by",
        ),
        (CHILD, "for its children"),
    ],
    ids=["pipe", "tcp", "epoll", "child"],
)
def test_the_other_end_is_named(program: str, call: str) -> None:
    with process_tree_of(program) as processes:
        text = wait_description(processes, lambda text: call in text)
        assert call in text
        assert str(processes[1].pid) in text


def test_a_process_that_runs_stopped_or_gone() -> None:
    with process_tree_of("print('up', flush=True)\nwhile True: pass") as processes:
        used = processes[0].cpu_times().user
        assert (
            wait_description(processes, lambda text: processes[0].cpu_times().user > used)
            == "waits: no, it runs"
        )  # it has come back from its write
        processes[0].suspend()
        assert "waits: it is stopped" in wait_description(processes, lambda text: "stopped" in text)
        assert Waits(processes, {processes[0].pid}).describe(processes[0]) == "waits: no, it ran"
        processes[0].resume()
    assert Waits(processes).describe(processes[0]) == ""


def test_a_lock(tmp_path: object) -> None:
    with process_tree_of(
        "import threading\nprint('up', flush=True)\na = threading.Lock(); a.acquire(); a.acquire()"
    ) as processes:
        assert "futex: a lock" in wait_description(processes, lambda text: "futex" in text)
