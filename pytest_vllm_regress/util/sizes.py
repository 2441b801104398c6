"""Sizes in bytes: units, sizes in text, and what files take on the disk."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path

MIB, GIB = 2**20, 2**30
_SHOWN = ("B", "KiB", "MiB", "GiB")
_UNITS = {"MiB": MIB, "GiB": GIB}
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(MiB|GiB)")


def size_of(text: str) -> int | None:
    """Return the bytes in a text such as ``30GiB``; None for anything else."""
    match = _SIZE.fullmatch(text.strip())
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def disk_usage(*places: Path) -> int:
    """Return what these folders take on the disk in bytes.

    Files that they share by hard links count once, and missing folders nothing.
    """
    existing = [str(place) for place in places if place.exists()]
    if not existing:
        return 0
    out = subprocess.run(
        ["du", "-sc", "--block-size=1", "--", *existing],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = out.stdout.splitlines()
    return int(lines[-1].split()[0]) if lines else 0


def freed_by_removing(*places: Path) -> int:
    """Return what the disk gains, in bytes, when these folders go: files that others share by hard
    links stay."""
    names: Counter[tuple[int, int]] = Counter()
    files: dict[tuple[int, int], os.stat_result] = {}
    for place in places:
        for folder, _, inside in os.walk(place):
            for name in inside:
                with suppress(OSError):
                    status = os.lstat(os.path.join(folder, name))
                    names[status.st_dev, status.st_ino] += 1
                    files[status.st_dev, status.st_ino] = status
    return sum(
        status.st_blocks * 512 for key, status in files.items() if names[key] == status.st_nlink
    )


def human(size: float) -> str:
    """Return a number of bytes with a unit, for people."""
    for unit in _SHOWN[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} {_SHOWN[-1]}"
