"""What the plugin costs a project that does not use it: processor time of ``pytest --collect-only`` in an empty folder.

Three environments: pytest alone, with the packages that the plugin brings (and pytest plugins among them), and with the plugin itself.
``python benchmarks/plugin_cost.py`` builds them in a temporary folder and measures them in turn.

The plugin's own part is measured in a fourth, where it stands beside pytest without the packages it brings, none of which it needs to start: what
``pytest.main`` takes there more than where pytest is alone. What counts is the median of many pairs, whose two runs follow each other.
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
AT_MOST_MS = 20.0
COLLECT = ("-q", "--collect-only", "-p", "no:cacheprovider")
MAIN = """
import sys, time
import pytest
began = time.process_time()
status = pytest.main(sys.argv[1:])
print(1000 * (time.process_time() - began))
sys.exit(status)
"""


def environment(folder: Path, *wanted: str) -> Path:
    """The interpreter of a new environment with these requirements."""
    python = folder / "bin" / "python"
    uv.run(["venv", "--quiet", "--python", sys.executable, folder], doing="making an environment")
    uv.run(["pip", "install", "--quiet", "--compile-bytecode", "--python", python, *wanted], doing="installing")
    return python


def run(project: Path, *command: str | Path) -> str:
    """What a collection that finds nothing prints."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 5:  # no tests collected
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def whole(python: Path, project: Path) -> float:
    """Milliseconds of processor time from the start of the process to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(project, python, "-m", "pytest", *COLLECT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def part(python: Path, project: Path) -> float:
    """Milliseconds of processor time in ``pytest.main``."""
    return float(run(project, python, "-c", MAIN, *COLLECT).splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ours = environment(place / "ours", str(ROOT))
        listed = subprocess.run(
            [
                ours,
                "-c",
                "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))",
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        brought = [each for each in listed if not each.startswith("pytest-vllm-regress")]
        (pytest_alone,) = (each for each in listed if each.startswith("pytest=="))
        pythons = {
            "pytest alone": environment(place / "alone", pytest_alone),
            "with the packages it brings": environment(place / "packages", *brought),
            "with the plugin": ours,
        }
        bare = environment(place / "bare", pytest_alone)
        uv.run(
            ["pip", "install", "--quiet", "--no-deps", "--compile-bytecode", "--python", bare, ROOT], doing="installing"
        )
        project = place / "project"
        project.mkdir()
        found: dict[str, list[float]] = {name: [] for name in pythons}
        for number in range(ROUNDS + 1):
            for name, python in pythons.items():
                spent = whole(python, project)
                if number:  # the first round fills the caches of files
                    found[name].append(spent)
        pairs = [tuple(part(python, project) for python in (pythons["pytest alone"], bare)) for _ in range(PAIRS + 1)]
    middle = {name: statistics.median(each) for name, each in found.items()}
    alone = middle["pytest alone"]
    for name, each in found.items():
        print(f"{name:30}{middle[name]:6.0f} ms ({min(each):.0f} to {max(each):.0f}), {middle[name] / alone:.2f} times")
    low, median, high = statistics.quantiles((beside - alone for alone, beside in pairs[1:]), n=4)
    fastest, fastest_beside = map(min, zip(*pairs, strict=True))
    print(
        f"its own part{median:24.1f} ms (half of {PAIRS} pairs: {low:.1f} to {high:.1f}; "
        f"the fastest runs: {fastest_beside - fastest:.1f}); at most {AT_MOST_MS:g} ms: {'reached' if median <= AT_MOST_MS else 'missed'}"
    )


if __name__ == "__main__":
    main()
