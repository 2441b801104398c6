"""Measure how long commands that only read files take, from their start to their end.

    python benchmarks/start.py [ROUNDS]

It prints the least processor time of several runs of each command, beside that of an interpreter that does nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from pytest_vllm_regress.cases.lint import SOUND_LOGS

COMMANDS = {
    "python alone": ["-c", "pass"],
    "--version": ["-m", "pytest_vllm_regress", "--version"],
    "list": ["-m", "pytest_vllm_regress", "list"],
    "show": ["-m", "pytest_vllm_regress", "show", "vllm-17173"],
    "audit": ["-m", "pytest_vllm_regress", "audit", "vllm==0.8.4"],
    "explain": ["-m", "pytest_vllm_regress", "explain", str(SOUND_LOGS / "vllm-0.8.5.log")],
}


def seconds(arguments: list[str]) -> float:
    """Return the processor time of one run of the interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for name, arguments in COMMANDS.items():
        print(f"{name:14}{min(seconds(arguments) for _ in range(rounds)):6.2f} s", flush=True)


if __name__ == "__main__":
    main()
