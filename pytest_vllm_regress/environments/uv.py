"""Running uv: one place that knows its command line, its surroundings and how its failures read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import BuildError
from ..util.masking import mask, without_secrets

Progress = Callable[[str], None]
_NOT_INHERITED = (
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "PYTHONHOME",
    "CONDA_PREFIX",
    "UV_PROJECT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
)
_KINDS = (
    (r"No space left on device|ENOSPC", "the disk is full", "free some space, or `vllm-regress env prune`"),
    (
        r"Permission denied|Read-only file system",
        "a place cannot be written",
        "set VLLM_REGRESS_CACHE or UV_CACHE_DIR to one that can",
    ),
    (
        r"dns error|Could not connect|Connection refused|connect error|network|timed out|Failed to fetch|error sending request",
        "the package index cannot be reached",
        "check the network and the index settings of uv",
    ),
    (
        r"No interpreter found|No virtual environment or system environment",
        "there is no such Python",
        "install it, or set `python` in environments.toml",
    ),
    (
        r"No solution found|there is no version of|was not found in the package registry|unsatisfiable",
        "the requirements cannot be resolved",
        "check versions and `exclude-newer` in environments.toml",
    ),
    (
        r"hash mismatch|Hash mismatch",
        "a file's hash is not the lock's",
        "lock again with `vllm-regress env lock` after finding out why",
    ),
)


def program() -> str:
    """The uv that came with this package, or one on the PATH."""
    from uv import find_uv_bin

    try:
        return os.fsdecode(find_uv_bin())
    except FileNotFoundError:
        raise BuildError("uv is not installed: `pip install uv`") from None


def run(
    arguments: Sequence[str | Path], *, doing: str, progress: Progress = lambda line: None, stdin: str | None = None
) -> str:
    """Run uv, hand on what it says line by line, return its standard output.

    It runs in the root directory: settings of a project around the working directory are none of our business.
    Raises ``BuildError`` with what was done, the kind of failure, uv's own words and what to do. An interrupted run ends uv first.
    """
    command = [program(), *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
        cwd=os.sep,
        start_new_session=True,
    )
    lines: deque[str] = deque(maxlen=4000)
    try:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(stdin or "")
            process.stdin.close()
        except BrokenPipeError:
            pass
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.strip() and not line.lstrip().startswith(("+ ", "- ")):  # the list of every package says little
                progress(mask(line.rstrip()))
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    said = "\n".join(lines)
    if status:
        raise BuildError(explain(doing, said, status))
    return said


def has_wheel_folder() -> bool:
    """Whether uv is told of wheels beside the index: local builds may be among them."""
    return "UV_FIND_LINKS" in _environment()


def explain(doing: str, said: str, status: int) -> str:
    """A failure of uv in words: what was being done, the kind of failure, uv's own reason, what to do."""
    kind, advice = f"uv ended with status {status}", "see uv's words"
    for pattern, words, what in _KINDS:
        if re.search(pattern, said):
            kind, advice = words, what
            break
    reason = "\n".join(f"    {line}" for line in said.strip().splitlines()[-25:])
    return mask(f"{doing}: {kind}; {advice}. uv says:\n{reason}")


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in without_secrets(os.environ).items() if name not in _NOT_INHERITED}
    # Indexes may carry credentials in their own variables: those are uv's to read.
    environment |= {name: value for name, value in os.environ.items() if name.startswith("UV_INDEX")}
    if "PIP_FIND_LINKS" in os.environ:  # a wheel folder that is set up for pip serves uv as well
        environment.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"].replace(" ", ","))
    return environment | {
        "UV_NO_CONFIG": "0",
        "UV_NO_PROGRESS": "1",
        "UV_LINK_MODE": environment.get("UV_LINK_MODE", "hardlink"),
    }
