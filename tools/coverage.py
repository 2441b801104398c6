"""Record which functions of vLLM each case executes in a release, for the order in which ``try`` runs
the cases: ``python -m tools.coverage vllm-0.33.0 [CASE...]``.

This module is also the plugin that tells pytest's tests apart.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.target import built_target
from pytest_vllm_regress.history.case_coverage import CaseCoverage
from pytest_vllm_regress.history.changed_functions import ChangedFunctions
from pytest_vllm_regress.target_site.vllm_regress_target.reached import PLAN
from pytest_vllm_regress.util.files import read_lines
from pytest_vllm_regress.util.rundir import scratch

_MAX_BYTES = 1 << 30


def main(environment: str, case_ids: list[str]) -> None:
    target = built_target(environment, "sim")
    if target is None:
        sys.exit(f"build it first: vllm-regress env build {environment}")
    (package,) = target.python.parents[1].glob("lib/python3.*/site-packages/vllm")
    functions = ChangedFunctions(dict(functions_in(package)), ())
    names = functions.names
    with scratch() as folder, functions.recorded(folder):
        # One at a time: the epoch is that of a single test.
        run = [sys.executable, "-m", "pytest_vllm_regress", "run", "--jobs", "1"]
        run += ["--env", environment, *case_ids, "--", "-p", "tools.coverage"]
        subprocess.run(run, check=False)
        executed: dict[str, set[str]] = {}
        for line in read_lines(folder / "by-case.jsonl", 0, _MAX_BYTES)[0]:
            case_id, numbers = json.loads(line)
            executed.setdefault(case_id, set()).update(names[n] for n in numbers)
    CaseCoverage.of(target.versions["vllm"], executed).save()


def functions_in(package: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the modules of a package with the names of their functions."""
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        names = dict.fromkeys(_names(ast.parse(path.read_bytes()), ()))
        if names:
            yield module.removesuffix(".__init__"), tuple(names)


def _names(node: ast.AST, outer: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = (*outer, child.name) if named else outer  # type: ignore[attr-defined]
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield ".".join(inner)
        yield from _names(child, inner)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Begin a new epoch, and keep what the processes under test have recorded in it."""
    folder = Path(os.environ[PLAN]).parent
    record, epoch = folder / "executed.txt", folder / "epoch"
    record.touch()
    begin = record.stat().st_size
    with epoch.open("r+b") as file:
        number = file.read(1)[0]
        file.seek(0)
        file.write(bytes([(number + 1) % 256]))
    result = yield
    marker = item.get_closest_marker("vllm_case")
    numbers = sorted({int(line) for line in read_lines(record, begin, _MAX_BYTES)[0]})
    with (folder / "by-case.jsonl").open("a") as kept:
        case_id = marker.args[0] if marker and marker.args else item.path.parent.name
        kept.write(json.dumps([case_id, numbers]) + "\n")
    return result


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
