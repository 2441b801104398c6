"""Time in which pytest itself is stopped does not count as a hang of the target."""

from __future__ import annotations

from pathlib import Path

import pytest

PROBE = """
import os, signal, subprocess, threading, time

def answered_while_stopped(controller, seconds):
    subprocess.Popen(["sh", "-c", "sleep {}; kill -CONT {}".format(seconds, controller)], start_new_session=True)
    os.kill(controller, signal.SIGSTOP)
    return 8

def answered_afterwards(controller, seconds):
    os.kill(controller, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(controller, signal.SIGCONT)
    time.sleep(0.3)
    return 8

def never_answered(controller, seconds):
    answered_afterwards(controller, seconds)
    threading.Event().wait()
"""
TEST = """
import os
import pytest
from pytest_vllm_regress import DeadlineExceeded

@pytest.mark.parametrize("function", ["answered_while_stopped", "answered_afterwards"])
def test_answered(vllm_probe, function):
    assert vllm_probe(function, timeout=5, controller=os.getpid(), seconds=6) == 8

def test_hangs(vllm_probe):
    with pytest.raises(DeadlineExceeded, match="no answer within 5 s") as caught:
        vllm_probe("never_answered", timeout=5, controller=os.getpid(), seconds=6)
    assert "s of this wait the controller did not run" in caught.value.detail
"""


def test_a_deadline_is_extended_by_the_time_in_which_pytest_was_stopped(
    pytester: pytest.Pytester, affected_target: Path
) -> None:
    pytester.makepyfile(probe=PROBE, test_stopped=TEST)
    pytester.runpytest_subprocess(f"--vllm-env={affected_target}").assert_outcomes(passed=3)
