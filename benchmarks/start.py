"""Measure how long commands that only read files take, from their start to their end.

    python benchmarks/start.py [ROUNDS]

It prints the least processor time of several runs of each command, beside that of an interpreter
that does nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_vllm_regress.cases.proofs.lint import SOUND_LOGS

COMMAND = ("-m", "pytest_vllm_regress")
COMMANDS = {
    "python alone": ["-c", "pass"],
    "--version": [*COMMAND, "--version"],
    "--help": [*COMMAND, "--help"],
    "list": [*COMMAND, "list"],
    "show": [*COMMAND, "show", "vllm-17173"],
    "audit": [*COMMAND, "audit", "vllm==0.8.4"],
    "audit --serve": [*COMMAND, "audit", "vllm==0.8.4", "--serve", "vllm serve M"],
    "explain": [*COMMAND, "explain", str(SOUND_LOGS / "vllm-0.8.5.log")],
    "compare": [*COMMAND, "compare", "0.8.4", "0.10.2"],
    "uses": [*COMMAND, "uses", str(Path(__file__).parent)],
    "report": [*COMMAND, "report", "RESULTS"],
    "site": [*COMMAND, "site", "--out", "SITE"],
}
"""``RESULTS`` is a result file without results, and ``SITE`` an empty folder."""


def seconds(arguments: list[str]) -> float:
    """Return the processor time of one run of the interpreter. Raises an error if the command did not do its work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: an answer that is not good news
        raise SystemExit(f"{arguments}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        results.write_text('{"schema": 2, "tool_version": "0", "results": [], "problems": []}')
        places = {"RESULTS": str(results), "SITE": str(Path(folder, "site"))}
        for name, words in COMMANDS.items():
            arguments = [places.get(word, word) for word in words]
            print(f"{name:14}{min(seconds(arguments) for _ in range(rounds)):6.2f} s", flush=True)


if __name__ == "__main__":
    main()
