"""Shared memory that nobody uses any more, whoever runs engines beside the test."""

from __future__ import annotations

import os
import time

from pytest_vllm_regress.target_site.vllm_regress_target.nanny import mapped_shm

GONE_S = 10.0


def unused() -> frozenset[str]:
    """Files in /dev/shm that no living process has mapped."""
    there = {os.path.join(folder, name) for folder, _, names in os.walk("/dev/shm") for name in names}
    return frozenset(there - mapped_shm(int(pid) for pid in os.listdir("/proc") if pid.isdigit()))


def left_since(before: frozenset[str]) -> frozenset[str]:
    """What has come since and stays: others' files are unused for a moment only, as they come and go."""
    left = unused() - before
    until = time.monotonic() + GONE_S
    while left and time.monotonic() < until:
        time.sleep(0.05)  # no event tells that another program's file is gone
        left &= unused()
    return left
