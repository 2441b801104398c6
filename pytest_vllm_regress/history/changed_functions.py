"""The functions that a patch changes, and which of them were executed: the plan for the processes
under test (``target_site/vllm_regress_target/reached.py``) and their record."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..target_site.vllm_regress_target.reached import PLAN
from ..util.files import peek

_MAX_RECORD = 64 * 1024 * 1024
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ChangedFunctions:
    """Functions that are new or have other code, by module, such as ``Scheduler.schedule``.

    ``outside``: the files that have other code outside functions, which runs when they are
    imported.
    """

    by_module: Mapping[str, tuple[str, ...]]
    outside: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Module and function, in the order of the numbers in the record."""
        return tuple(
            f"{module}:{name}" for module, names in self.by_module.items() for name in names
        )

    @contextlib.contextmanager
    def recorded(self, folder: Path) -> Iterator[None]:
        """Let the processes under test that are started meanwhile record in ``folder`` which of the
        functions they execute."""
        folder.mkdir(parents=True, exist_ok=True)
        numbers = iter(range(len(self.names)))
        functions = {
            module: {name: next(numbers) for name in names}
            for module, names in self.by_module.items()
        }
        plan, epoch = folder / "functions.json", folder / "epoch"
        epoch.write_bytes(b"\0")
        paths = {"record": str(_record(folder)), "epoch": str(epoch)}
        plan.write_text(json.dumps({**paths, "functions": functions}))
        os.environ[PLAN] = str(plan)
        try:
            yield
        finally:
            del os.environ[PLAN]

    def not_executed(self, folder: Path) -> tuple[str, ...]:
        """Return the functions that no process recorded in ``folder``."""
        executed = set(peek(_record(folder), _MAX_RECORD).split())
        return tuple(name for number, name in enumerate(self.names) if str(number) not in executed)


def _record(folder: Path) -> Path:
    return folder / "executed.txt"


def changed_functions(
    paths: Iterable[str], before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> ChangedFunctions:
    """Return the functions in these files of a tree whose code differs, without comments and
    docstrings. A file that cannot be parsed has none."""
    by_module: dict[str, tuple[str, ...]] = {}
    outside = []
    for path in sorted(paths):
        if not path.endswith(".py") or path not in after:
            continue
        old, new = (_code_of_functions(side.get(path, b"")) for side in (before, after))
        names = tuple(name for name, code in new.items() if name and old.get(name) != code)
        if names:
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            by_module[module] = names
        if old.get("") != new.get(""):
            outside.append(path)
    return ChangedFunctions(by_module, tuple(outside))


def _code_of_functions(source: bytes) -> dict[str, str]:
    """Return the code of each function without the functions in it; that outside functions has the
    empty name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in it
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if ast.get_docstring(tree, clean=False) is not None:
        del tree.body[0]
    code: dict[str, str] = {}
    _take_functions(tree, [], code)
    code[""] = ast.dump(tree)
    return code


def _take_functions(node: ast.AST, names: list[str], code: dict[str, str]) -> None:
    """Move the body of each function from the tree to ``code``, the inner ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.ClassDef):
            inner = [*names, child.name]
            if ast.get_docstring(child, clean=False) is not None:
                del child.body[0]
            _take_functions(child, inner, code)
            if isinstance(child, _Function):
                name = ".".join(inner)
                code[name] = code.get(name, "") + ast.dump(child)
                child.body, child.args = [], ast.arguments([], [], None, [], [], None, [])
        else:
            _take_functions(child, names, code)
