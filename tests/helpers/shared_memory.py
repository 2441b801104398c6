"""Find shared memory that tests leave behind."""

from __future__ import annotations

import os
import time

from pytest_vllm_regress.target_site.vllm_regress_target.nanny import mapped_shm

GONE_S = 60.0


def unmapped_files() -> frozenset[str]:
    """Return the files in /dev/shm that no running process has mapped."""
    existing = {
        os.path.join(folder, name) for folder, _, names in os.walk("/dev/shm") for name in names
    }
    return frozenset(
        existing - mapped_shm(int(pid) for pid in os.listdir("/proc") if pid.isdigit())
    )


def leaked_since(before: frozenset[str]) -> frozenset[str]:
    """Return the unmapped files that are new since ``before`` and do not disappear within
    ``GONE_S``.

    Files of other programs are unmapped only briefly, while they are created and removed.
    """
    leaked = unmapped_files() - before
    until = time.monotonic() + GONE_S
    while leaked and time.monotonic() < until:
        time.sleep(0.05)  # there is no event for the removal of another program's file
        leaked &= unmapped_files()
    return leaked
