"""Measure what the plugin costs a project that does not use it.

    python benchmarks/plugin_cost.py

It builds environments in a temporary folder and prints the processor time of ``pytest
--collect-only`` in an empty project: for pytest alone, with the packages that the plugin depends on
(some are pytest plugins), and with the plugin. Then it prints the plugin's own part: the difference
that the plugin without its dependencies, which it does not need to start, makes to ``pytest.main``.
This is the median over many pairs of consecutive runs.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_vllm_regress.environments import uv

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 9
PAIRS = 100
MAX_MS = 20.0
COLLECT = ("-q", "--collect-only", "-p", "no:cacheprovider")
MAIN = """
import sys, time
import pytest
began = time.process_time()
status = pytest.main(sys.argv[1:])
print(1000 * (time.process_time() - began))
sys.exit(status)
"""


def environment(folder: Path, *requirements: str) -> Path:
    """Create an environment with these requirements and return its interpreter."""
    python = folder / "bin" / "python"
    uv.run(["venv", "--quiet", "--python", sys.executable, folder], doing="making an environment")
    uv.run(
        ["pip", "install", "--quiet", "--compile-bytecode", "--python", python, *requirements],
        doing="installing",
    )
    return python


def run(project: Path, *command: str | Path) -> str:
    """Run a collection that finds no tests and return its output."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PYTHON"))
    }
    done = subprocess.run(
        command, cwd=project, env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode != 5:  # no tests collected
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def whole(python: Path, project: Path) -> float:
    """Return the processor time (milliseconds) of a whole pytest process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(project, python, "-m", "pytest", *COLLECT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def part(python: Path, project: Path) -> float:
    """Return the processor time (milliseconds) of ``pytest.main``."""
    return float(run(project, python, "-c", MAIN, *COLLECT).splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with_everything = environment(root / "plugin", str(ROOT))
        listed = subprocess.run(
            [
                with_everything,
                "-c",
                "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        dependencies = [
            package for package in listed if not package.startswith("pytest-vllm-regress")
        ]
        (pytest_alone,) = (package for package in listed if package.startswith("pytest=="))
        pythons = {
            "pytest alone": environment(root / "alone", pytest_alone),
            "with its dependencies": environment(root / "packages", *dependencies),
            "with the plugin": with_everything,
        }
        bare = environment(root / "bare", pytest_alone)
        uv.run(
            [
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--compile-bytecode",
                "--python",
                bare,
                ROOT,
            ],
            doing="installing",
        )
        project = root / "project"
        project.mkdir()
        times: dict[str, list[float]] = {name: [] for name in pythons}
        for number in range(ROUNDS + 1):
            for name, python in pythons.items():
                spent = whole(python, project)
                if number:  # the first round only fills the file caches
                    times[name].append(spent)
        pairs = [
            tuple(part(python, project) for python in (pythons["pytest alone"], bare))
            for _ in range(PAIRS + 1)
        ]
    medians = {name: statistics.median(values) for name, values in times.items()}
    alone = medians["pytest alone"]
    for name, values in times.items():
        print(
            f"{name:30}{medians[name]:6.0f} ms ({min(values):.0f} to {max(values):.0f}), {medians[name] / alone:.2f} times"
        )
    low, median, high = statistics.quantiles(
        (with_plugin - alone for alone, with_plugin in pairs[1:]), n=4
    )
    fastest, fastest_with_plugin = map(min, zip(*pairs, strict=True))
    print(
        f"its own part{median:24.1f} ms (half of {PAIRS} pairs: {low:.1f} to {high:.1f}; "
        f"the fastest runs: {fastest_with_plugin - fastest:.1f}); at most {MAX_MS:g} ms: {'reached' if median <= MAX_MS else 'missed'}"
    )


if __name__ == "__main__":
    main()
