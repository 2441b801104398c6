"""Runs a tutorial as a reader does: saves the files that it names, and enters its commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.helpers import ROOT

_STEP = re.compile(
    r"Save this as `(?P<name>[\w.]+)`[^\n]*:\n\n```\w+\n(?P<content>.*?)^```"
    r"|^```console\n(?P<commands>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


class Command(NamedTuple):
    """A command, the output that the page shows, and what it printed."""

    text: str
    shown: list[str]
    printed: list[str]

    @property
    def missing(self) -> list[str]:
        """Lines of the page that were not printed, in this order or at all."""
        lines = iter(self.printed)
        return [line for line in self.shown if not any(line in printed for printed in lines)]


def follow(page: str, folder: Path) -> list[Command]:
    """Do what a page of docs/tutorials says, in ``folder``."""
    commands: list[Command] = []
    for step in _STEP.finditer((ROOT / "docs" / "tutorials" / page).read_text(encoding="utf-8")):
        if step["name"]:
            (folder / step["name"]).write_text(step["content"], encoding="utf-8")
            continue
        for block in re.split(r"^\$ ", step["commands"], flags=re.MULTILINE)[1:]:
            text, *shown = block.splitlines()
            program, *arguments = shlex.split(text)
            assert program == "vllm-regress"
            done = subprocess.run(
                [sys.executable, "-m", "pytest_vllm_regress", *arguments],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=600,
            )
            assert done.returncode in (0, 1, 5), done.stderr
            commands.append(Command(text, list(filter(None, shown)), done.stdout.splitlines()))
    return commands
