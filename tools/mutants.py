"""Count the random mutants of the package that its tests do not detect.

    python -m tools.mutants tools/mutants.toml --mutants 100 --seed 1 --output mutants.jsonl

The TOML file says which tests to run for which modules (files or folders in the package):

    [[group]]
    name = "readers"
    modules = ["deployments", "uses/text.py"]
    tests = ["tests/unit/deployments", "tests/unit/uses", "-m", "not slow"]
    share = 2  # of the mutants, compared with other groups (default: 1)

The tests run in a copy of the checkout. Each outcome is appended to the output file at once, and
the same command continues a run that was stopped. Outcomes: killed, timed out, survived, and not
covered (the tests also pass when the mutated statement raises an exception).
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

NOT_COPIED = (".git", ".venv", ".tox", ".hypothesis", ".*_cache", "__pycache__")
SWAPPED = {"Eq": "NotEq", "In": "NotIn", "Is": "IsNot", "Lt": "LtE", "Gt": "GtE", "And": "Or"}
SWAPPED |= {"Add": "Sub", "Mult": "FloorDiv"}
SWAPPED |= {new: old for old, new in SWAPPED.items()} | {"Div": "Mult", "Mod": "Mult"}


class Mutant(NamedTuple):
    """One change of a file in the package. ``number`` counts the file's possible changes."""

    group: str
    file: str
    number: int
    line: int
    change: str


def altered(node: ast.AST, field: str, value: Any) -> ast.AST:
    """Return a copy of the node with another value of a field."""
    new = copy.copy(node)
    setattr(new, field, value)
    return new


def swapped(operator: ast.AST) -> Any:
    """Return the operator to use instead; None if there is none."""
    name = SWAPPED.get(type(operator).__name__)
    return name and getattr(ast, name)()


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may replace a node."""
    match node:
        case ast.Compare(ops=ops):
            for i, operator in enumerate(ops):
                yield altered(node, "ops", [*ops[:i], swapped(operator), *ops[i + 1 :]])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if swapped(op):
            yield altered(node, "op", swapped(op))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            yield ast.Constant(number + 1)
        case ast.Constant(value=str(text)):
            yield ast.Constant(text + "~")
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
        case ast.If(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.UnaryOp | ast.Compare):  # which have mutants of their own
                yield altered(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()


def left_out(tree: ast.AST) -> set[int]:
    """Return the ids of nodes not to mutate, e.g. strings that are not returned or compared."""
    found, strings, used = set(), set(), set()
    for node in ast.walk(tree):
        found |= {id(getattr(node, field, None)) for field in ("annotation", "returns")}
        match node:
            case ast.Constant(value=str()):
                strings.add(id(node))
            case ast.Return() | ast.Compare() | ast.MatchValue():
                used |= {id(child) for child in ast.iter_child_nodes(node)}
            case ast.FunctionDef(name="__repr__") | ast.If(test=ast.Name("TYPE_CHECKING")):
                found.add(id(node))
            case ast.Call(func=ast.Attribute(ast.Name("typer"), "Option" | "Argument")):
                found.add(id(node))
    return found | (strings - used)


class Mutation(ast.NodeTransformer):
    """Lists the possible changes of a module and makes one, or raises an exception before it."""

    def __init__(self, source: str, number: int = -1, raises: bool = False) -> None:
        self.number, self.raises = number, raises
        self.changes: list[tuple[int, str]] = []
        tree = ast.parse(source)
        self._left_out = left_out(tree)
        self.source = ast.unparse(ast.fix_missing_locations(self.visit(tree)))

    def visit(self, node: ast.AST) -> Any:
        if id(node) in self._left_out:
            return node
        first = len(self.changes)
        for new in replacements(node):
            before, after = (ast.unparse(part).partition("\n")[0] for part in (node, new))
            self.changes.append((getattr(node, "lineno", 0), f"{before} -> {after}"))
            if len(self.changes) - 1 == self.number and not self.raises:
                return new
        self.generic_visit(node)
        if self.raises and isinstance(node, ast.stmt) and first <= self.number < len(self.changes):
            self.raises = False
            return [*ast.parse("raise BaseException('mutant')").body, node]
        return node


def drawn(group: dict[str, Any], package: Path, count: int, seed: int) -> list[Mutant]:
    """Draw mutants of a group's modules. All possible changes are equally probable."""
    mutants = []
    for path in (package / module for module in group["modules"]):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = file.relative_to(package).as_posix()
            changes = Mutation(file.read_text("utf-8")).changes
            mutants += [Mutant(group["name"], name, i, *change) for i, change in enumerate(changes)]
    return random.Random(f"{seed} {group['name']}").sample(mutants, min(count, len(mutants)))


class Checkout:
    """A copy of the checkout, in which the tests run."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.root, self.log = folder / "checkout", folder / "pytest.log"
        ignored = shutil.ignore_patterns(*NOT_COPIED)
        shutil.copytree(package.parent, self.root, symlinks=True, ignore=ignored)
        self.package = self.root / package.name
        self.environ = os.environ | {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", "-c", f"import {package.name} as p; print(p.__file__)"]
        imported = subprocess.check_output(command, env=self.environ, cwd=folder, text=True)
        if Path(imported.strip()).resolve().parent != self.package.resolve():
            sys.exit(f"the tests would import {imported.strip()}, not the copy")

    def test(self, tests: list[str], limit: float | None = None) -> str:
        """Run the tests, for at most ``limit`` seconds, and return the outcome."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["--timeout=60", *tests]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environ, stdout=log, stderr=log, process_group=0
            )
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                return "timed out"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status == 0:
            return "survived"
        return "timed out" if b"from pytest-timeout" in self.log.read_bytes() else "killed"

    def test_mutant(self, mutant: Mutant, tests: list[str], limit: float) -> str:
        """Run the tests with the mutant and return the outcome."""
        file = self.package / mutant.file
        source = file.read_text("utf-8")
        try:
            for raises in (False, True):
                self._write(file, Mutation(source, mutant.number, raises).source)
                if (outcome := self.test(tests, limit)) != "survived":
                    return "survived" if raises else outcome
            return "not covered"
        finally:
            self._write(file, source)

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text, "utf-8")
        # Bytecode counts as current if the source has the same size and second of modification.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Count the mutants that the tests do not detect.")
    parser.add_argument("groups", type=Path, help="TOML file: modules and tests of each group")
    parser.add_argument("--package", type=Path, default=Path("pytest_vllm_regress"))
    parser.add_argument("--mutants", type=int, default=100, help="number, for all groups together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("mutants.jsonl"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    package, groups = options.package.resolve(), tomllib.loads(options.groups.read_text())["group"]
    shares = sum(group.get("share", 1) for group in groups)
    options.output.touch()
    lines = map(json.loads, options.output.read_text("utf-8").splitlines())
    known = {Mutant(*(line[field] for field in Mutant._fields)): line for line in lines}
    totals: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkout = Checkout(package, Path(folder))
        for group in groups:
            count = round(options.mutants * group.get("share", 1) / shares)
            mutants = drawn(group, package, count, options.seed)
            start = time.monotonic()
            if not known.keys() >= set(mutants) and checkout.test(group["tests"]) != "survived":
                sys.exit(f"The tests fail without mutants:\n{checkout.log.read_text()[-3000:]}")
            limit = 60 + 3 * (time.monotonic() - start)
            for mutant in mutants:
                if mutant not in known:
                    start = time.monotonic()
                    outcome = checkout.test_mutant(mutant, group["tests"], limit)
                    seconds = round(time.monotonic() - start, 1)
                    known[mutant] = {**mutant._asdict(), "outcome": outcome, "seconds": seconds}
                    with options.output.open("a", encoding="utf-8") as output:
                        output.write(json.dumps(known[mutant]) + "\n")
                print(json.dumps(known[mutant]), flush=True)
            outcomes = (known[mutant]["outcome"] for mutant in mutants)
            totals[group["name"]] = collections.Counter(outcomes)
    print(json.dumps({"totals": totals}))


if __name__ == "__main__":
    main()
