"""Count the random mutants of the package that its tests do not detect: ``tox run -e mutants --
tools/mutants.toml --mutants 100 --seed 1``.

The TOML file says which tests to run for which modules (files or folders in the package):

    [[group]]
    name = "readers"
    modules = ["deployments", "uses/text.py"]
    tests = ["tests/unit/deployments", "tests/unit/uses", "-m", "not slow"]
    share = 2  # of the mutants, compared with other groups (default: 1)

cosmic-ray makes the mutants and keeps their outcomes in a session for each group, which ``cr-report
--show-diff SESSION`` lists. The tests run in a copy of the checkout. The same command continues a
run that was stopped.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
NOT_COPIED = (".git", ".venv", ".tox", ".hypothesis", ".*_cache", "__pycache__")
LEFT_OUT = "core/ReplaceBinaryOperator_BitOr"
"""Operator that mostly changes annotations (``int | None``), which no test can notice."""


def run_group(group: dict[str, Any], copy: Path, session: Path, count: int, seed: int) -> str:
    """Run the tests with ``count`` mutants of a group's modules. All possible changes are equally
    probable. Return the number of each outcome."""
    from cosmic_ray.commands.init import init
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.testing import run_tests
    from cosmic_ray.work_db import WorkDB, use_db

    command = shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "--timeout=60"])
    command = f"{command} -p no:cacheprovider {shlex.join(group['tests'])}"
    paths = (copy / "pytest_vllm_regress" / module for module in group["modules"])
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) or [path])]
    is_new = not session.exists()
    with use_db(str(session), WorkDB.Mode.create) as sessions:
        if is_new:
            init([file.relative_to(copy) for file in files], sessions, {})
        items = [item for item in sessions.work_items if LEFT_OUT not in str(item.mutations)]
        items.sort(key=lambda item: str(item.mutations))
        items = random.Random(seed).sample(items, min(count, len(items)))
        start = time.monotonic()
        outcome, output = run_tests(command, None)
        if outcome != "survived":
            raise SystemExit(f"The tests fail without mutants:\n{output[-3000:]}")
        limit = 60 + 3 * (time.monotonic() - start)
        known = dict(sessions.results)
        for item in items:
            if item.job_id not in known:
                known[item.job_id] = mutate_and_test(item.mutations, command, limit)
                sessions.set_result(item.job_id, known[item.job_id])
    return str(dict(Counter(str(known[item.job_id].test_outcome.value) for item in items)))


def main(groups: Path, mutants: int = 100, seed: int = 0, output: Path = Path("mutants")) -> None:
    """Run the tests of each group with its share of the mutants; sessions go to OUTPUT."""
    listed = tomllib.loads(groups.read_text(encoding="utf-8"))["group"]
    shares = sum(group.get("share", 1) for group in listed)
    output.mkdir(exist_ok=True)
    sessions = output.absolute()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "checkout")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)  # before the package that is installed
        for group in listed:
            count = round(mutants * group.get("share", 1) / shares)
            session = sessions / f"{group['name']}.sqlite"
            typer.echo(f"{group['name']}: {run_group(group, copy, session, count, seed)}")


if __name__ == "__main__":
    typer.run(main)
