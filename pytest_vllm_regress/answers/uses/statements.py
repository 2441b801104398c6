"""What statements of Python source say about names, without their scope."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from ..api_history.definitions import last_name, text_of, walk
from .blocks import bound_by
from .scope import Module, Names, Paths, key_of

NAMED_AS: Mapping[str, Paths] = {"vllm_config": ("vllm.config.VllmConfig()",)}
"""What parameters are that have no annotation, but a name that only vLLM uses."""
PARSES = ("parse_args", "parse_known_args")
_IMPORTS = re.compile(r"(?i)_*(?:\w*_)?import(?:_|$)\w*|importorskip")
"""Names of functions that import what strings name."""
_OF_VLLM = re.compile(r"vllm(?:\.[A-Za-z_]\w*)*")
T = TypeVar("T")


def owners_of_functions(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return by name the functions that the code puts into a class, with that: their first argument
    is an instance of it. ``setattr(C, "x", f)``, ``C.x = f``, ``f.__get__(c, C)``."""
    owners: dict[str, ast.expr] = {}
    for node in nodes:
        match node:
            case ast.Call(_, [owner, ast.Constant(str()), ast.Name(function)]):
                owners[function] = owner
            case ast.Assign([ast.Attribute(owner)], ast.Name(function)):
                owners[function] = owner
            case ast.Call(ast.Attribute(ast.Name(function), "__get__"), [_, owner]):
                owners[function] = owner
    return owners


def imported_by_program(module: Module) -> Names:
    """Return what of vLLM only ``if __name__ == "__main__"`` imports: functions above it have these
    names, too."""
    imports = [
        entry
        for node in module.tree.body
        if isinstance(node, ast.If) and key_of(getattr(node.test, "left", None)) == "__name__"
        for entry in walk(node)
        if isinstance(entry, ast.ImportFrom) and (entry.module or "").partition(".")[0] == "vllm"
    ]
    return {
        name: (f"{entry.module}.{alias.name}",)
        for entry in imports
        for alias in entry.names
        if module.name_counts[0][name := bound_by(alias)] == 1 and name != "*"
    }


def imported_by_name(value: ast.expr | None) -> Paths:
    """Return what of vLLM a call imports: ``optional_import("vllm", "LLM")``."""
    match value:
        case ast.Call(function, [module, *others]) if _IMPORTS.fullmatch(last_name(function)):
            path = ".".join(filter(None, map(text_of, (module, *others[:1]))))
            return (path,) if _OF_VLLM.fullmatch(path) else ()
    return ()


def parses_arguments(value: ast.expr | None) -> bool:
    """Return whether a call returns what a parser of the command line has read."""
    return isinstance(value, ast.Call) and last_name(value.func) in PARSES


def declared_in(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that the body of a class binds, with their annotations."""
    for entry in node.body:
        match entry:
            case ast.AnnAssign(ast.Name(name), annotation):
                yield name, annotation
            case ast.Assign(targets):
                yield from ((target.id, None) for target in targets if isinstance(target, ast.Name))
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name, None


def below(start: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return the values whose names begin with ``start``, keyed by the rest of the name."""
    return {
        name.removeprefix(start): value for name, value in values.items() if name.startswith(start)
    }


def expressions_of(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement without those of nested statements."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr
