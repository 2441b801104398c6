"""The time that processes wait for a processor, as counted by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pytest_vllm_regress.engines.http.health import waited_for_processor

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@pytest.mark.timeout(60)
def test_of_two_processes_on_one_processor_each_waits() -> None:
    processor = str(min(os.sched_getaffinity(0)))
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN, processor]) for _ in range(2)]
    try:
        while not all(waited_for_processor(process.pid) > 0.1 for process in spinning):
            time.sleep(0.01)
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert waited_for_processor(spinning[0].pid) == 0  # there is no such process
