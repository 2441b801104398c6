"""Record which functions of a patch are executed, in this process and those forked from it.

A call is compiled into the beginning of these functions, and nothing else: a profiler would slow
down every call, and ``sys.monitoring`` needs Python 3.12. Positions and source stay as they are.
"""

import ast
import builtins
import json
import mmap
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any, Dict, List, Union

PLAN = "VLLM_REGRESS_REACHED"
"""Variable with the path of the plan: the record to append to, the file with the epoch, and numbers
of functions by module."""
_HOOK = "__vllm_regress_reached__"
_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]


def install() -> None:
    """Record the functions of the plan in modules that are imported from now on, if there is one."""
    path = os.environ.get(PLAN)
    if not path:
        return
    with open(path, encoding="utf-8") as text:
        plan = json.load(text)
    seen: set[int] = set()
    # A byte that the controller changes for each test: a process that serves several then records
    # its functions again. Forked processes share it.
    with open(plan["epoch"], "r+b") as file:
        epoch = mmap.mmap(file.fileno(), 1)
    now = epoch[0]

    def reached(number: int) -> None:
        nonlocal now
        if epoch[0] != now:
            now = epoch[0]
            seen.clear()
        if number not in seen:
            seen.add(number)
            with suppress(OSError), open(plan["record"], "ab", buffering=0) as record:
                record.write(b"%d\n" % number)

    setattr(builtins, _HOOK, reached)
    sys.meta_path.insert(0, _Finder(plan["functions"]))


class _Finder:
    def __init__(self, functions: Dict[str, Dict[str, int]]) -> None:
        self._functions = functions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Union[ModuleSpec, None]:
        spec = PathFinder.find_spec(name, path, target) if name in self._functions else None
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path, self._functions[name])
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, numbers: Dict[str, int]) -> None:
        super().__init__(name, path)
        self._numbers = numbers

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source, whatever bytecode there is."""
        tree = ast.parse(self.get_data(self.path), self.path)
        _insert(tree, [], self._numbers)
        return compile(tree, self.path, "exec", dont_inherit=True)


def _insert(node: ast.AST, names: List[str], numbers: Dict[str, int]) -> None:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _insert(child, names, numbers)
            continue
        inner = [*names, child.name]
        _insert(child, inner, numbers)
        number = numbers.get(".".join(inner))
        if number is not None and not isinstance(child, ast.ClassDef):
            _insert_call(child, number)


def _insert_call(function: _Function, number: int) -> None:
    at = int(ast.get_docstring(function, clean=False) is not None)
    call = ast.parse(f"{_HOOK}({number})").body[0]
    for part in ast.walk(call):
        ast.copy_location(part, function.body[min(at, len(function.body) - 1)])
    function.body.insert(at, call)
