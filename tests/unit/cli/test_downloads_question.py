"""The question before downloads, on a terminal: how it is answered, and with which exit code a "no"
ends the command."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.helpers.cases import CaseFile

PROGRAM = """
import sys
from pytest_vllm_regress import cli
from pytest_vllm_regress.environments import downloads
downloads.downloads = lambda environments: "3 GiB must be downloaded"
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("answer", [b"n\n", b"\x03", b"\x04"], ids=["no", "ctrl-c", "ctrl-d"])
def test_every_refusal_ends_the_command_with_130(answer: bytes, tmp_path: Path) -> None:
    case = CaseFile(old=("vllm-0.8.4",), new=("vllm-0.10.2",)).write(tmp_path / "cases")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--cases", str(case.directory.parent), "run"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "VLLM_REGRESS_CACHE": str(tmp_path / "cache")},
    )
    os.close(theirs)
    try:
        output = _read_until(ours, b"Go on?")
        for _ in range(
            6
        ):  # a key that arrives while the prompt is set up may be lost: press it again
            os.write(ours, answer)
            output += _read_until(ours, b"nothing was downloaded or run", 10)
            if b"nothing was downloaded or run" in output:
                break
        assert process.wait(60) == 130, output
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(terminal: int, words: bytes, seconds: float = 30.0) -> bytes:
    text = b""
    while words not in text and select.select([terminal], [], [], seconds)[0]:
        try:
            text += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    return text
