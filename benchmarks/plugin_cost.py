"""What the plugin costs a project that does not use it: processor time of ``pytest --collect-only`` in an empty folder.

Three environments: pytest alone, with the packages that the plugin brings (and pytest plugins among them), and with the plugin itself.
``python benchmarks/plugin_cost.py`` builds them in a temporary folder and prints the medians, in turn in one run.
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
AT_MOST_MS = 20.0


def environment(folder: Path, *wanted: str) -> Path:
    """The interpreter of a new environment with these requirements."""
    python = folder / "bin" / "python"
    uv.run(["venv", "--quiet", "--python", sys.executable, folder], doing="making an environment")
    uv.run(["pip", "install", "--quiet", "--compile-bytecode", "--python", python, *wanted], doing="installing")
    return python


def milliseconds(python: Path, project: Path, *options: str, autoload: bool = True) -> float:
    """Processor time of one collection that finds nothing; without ``autoload`` only the plugins that ``options`` name are there."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST") and name != "PYTHONDONTWRITEBYTECODE"
    }
    variables |= {} if autoload else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [python, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, check=False)
    if done.returncode != 5:  # no tests collected
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


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
        project = place / "project"
        project.mkdir()
        own: list[float] = []
        found: dict[str, list[float]] = {name: [] for name in pythons}
        for number in range(ROUNDS + 1):
            for name, python in pythons.items():
                spent = milliseconds(python, project)
                if number:  # the first round fills the caches of files
                    found[name].append(spent)
            # By itself, in turn with a pytest without any plugin: beside Hypothesis's own plugin it would be lost in the noise.
            without = milliseconds(ours, project, autoload=False)
            own.append(milliseconds(ours, project, "-p", "pytest_vllm_regress.plugin", autoload=False) - without)
    middle = {name: statistics.median(each) for name, each in found.items()}
    alone = middle["pytest alone"]
    for name, each in found.items():
        print(f"{name:30}{middle[name]:6.0f} ms ({min(each):.0f} to {max(each):.0f}), {middle[name] / alone:.2f} times")
    part = statistics.median(own[1:])
    said = "reached" if part <= AT_MOST_MS else "missed"
    print(f"its own part{part:24.0f} ms ({min(own[1:]):.0f} to {max(own[1:]):.0f}); at most {AT_MOST_MS:g} ms: {said}")


if __name__ == "__main__":
    main()
