"""The run directory: one short path below the system's temporary directory that holds all a run writes, and says whose run it is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

PREFIX = "vr-"
_OWNER = "run.json"


@dataclasses.dataclass(frozen=True)
class RunDir:
    """``path`` holds logs/ and ray/ (Ray's session directory: socket paths must stay short). ``tag`` marks every process of the run."""

    path: Path
    tag: str

    @classmethod
    def create(cls) -> RunDir:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        run = cls(path, f"{path.name}-{secrets.token_hex(4)}")
        me = psutil.Process()
        owner = {"pid": me.pid, "started": me.create_time(), "tag": run.tag, "boot": _boot_id()}
        (path / _OWNER).write_text(json.dumps(owner))
        (path / "logs").mkdir()
        return run

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class AbandonedRun:
    """A run directory whose controller is gone."""

    run: RunDir
    controller_pid: int


def abandoned_runs() -> Iterator[AbandonedRun]:
    """Run directories of this user whose controller no longer lives (pid and start time are both compared)."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            owner = json.loads((path / _OWNER).read_text())
            if not str(owner["tag"]).startswith(path.name) or _alive(int(owner["pid"]), float(owner["started"]), owner["boot"]):
                continue
            yield AbandonedRun(RunDir(path, owner["tag"]), int(owner["pid"]))


def _alive(pid: int, started: float, boot: str) -> bool:
    if boot != _boot_id():
        return False
    try:
        return abs(psutil.Process(pid).create_time() - started) < 1.0
    except psutil.NoSuchProcess:
        return False


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
