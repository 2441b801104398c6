"""How blocks of statements end, and which failures their handlers catch."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..api_history.definitions import inner_statements, last_name, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Try = ast.Try | ast.TryStar
_WRITES = re.compile(
    r"print|warn|warning|warning_once|info|debug|error|exception|critical|log|write"
)
OF_IMPORT = frozenset(("module", "name"))
"""Failures that an import may raise."""
ALL_CAUGHT = frozenset(("module", "name", "attribute", "argument"))
_CAUGHT = {
    "ImportError": OF_IMPORT,
    "ModuleNotFoundError": {"module"},
    "AttributeError": {"attribute"},
    "TypeError": {"argument"},
    "Exception": ALL_CAUGHT,
    "BaseException": ALL_CAUGHT,
}


def kinds_caught(handler: ast.ExceptHandler) -> frozenset[str]:
    if handler.type is None:
        return ALL_CAUGHT
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return _caught(types)


def kinds_suppressed(node: ast.With | ast.AsyncWith) -> frozenset[str]:
    """Return the kinds of failures that ``with suppress(ImportError)`` handles."""
    types: list[ast.expr] = []
    for item in node.items:
        match item.context_expr:
            case ast.Call(function, arguments) if last_name(function) == "suppress":
                types += arguments
    return _caught(types)


def _caught(types: Iterable[ast.expr]) -> frozenset[str]:
    return frozenset[str]().union(*(_CAUGHT.get(last_name(kind), ()) for kind in types))


def always_raises(body: Sequence[ast.stmt]) -> bool:
    """Return whether every path through a block raises an exception or ends the program."""
    match body[-1]:
        case ast.Raise():
            return True
        case ast.Expr(ast.Call(function)):
            return last_name(function) in ("exit", "_exit")
        case ast.If(_, true, false):
            return bool(false) and always_raises(true) and always_raises(false)
        case ast.With(body=inner) | ast.AsyncWith(body=inner):
            return always_raises(inner)
        case ast.Try(inner, handlers, _, finalbody):
            handled = all(always_raises(handler.body) for handler in handlers)
            return (handled and always_raises(inner)) or (
                bool(finalbody) and always_raises(finalbody)
            )
    return False


def only_passes(node: Try) -> bool:
    """Return whether all handlers only write a message."""
    handled = (statement for handler in node.handlers for statement in handler.body)
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and _says(statement.value))
        for statement in handled
    )


def _says(value: ast.expr) -> bool:
    """Return whether an expression is a docstring, ``...``, or a call that writes a message."""
    if isinstance(value, ast.Call):
        return _WRITES.fullmatch(last_name(value.func)) is not None
    return isinstance(value, ast.Constant)


def leaves(node: ast.stmt) -> bool:
    """Return whether a statement leaves its block."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(owner, "skip" | "fail" | "skipTest"))):
            return last_name(owner) in ("pytest", "self")
    return isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break) or (
        isinstance(node, ast.Expr) and always_raises([node])
    )


def constants_in(body: Iterable[ast.stmt]) -> dict[str, bool]:
    """Return the names that a block binds to a constant."""
    return {
        target.id: bool(node.value.value)
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def leaves_names_undefined(node: Try, names: tuple[Counter[str], Counter[str]]) -> bool:
    """Return whether the file needs one of the names elsewhere whose import may fail. ``names``: of
    the file, see ``names_of``."""
    bound, loaded = names
    _, inside = names_of(n for part in (*node.body, *node.orelse) for n in walk(part))
    return any(
        bound[name] == 1 and loaded[name] > inside[name] for name in imported_names(node.body)
    )


def imported_names(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the names that the imports of a block bind."""
    imports = (entry for entry in body if isinstance(entry, (ast.Import, ast.ImportFrom)))
    return frozenset(bound_by(alias) for statement in imports for alias in statement.names)


def bound_by(alias: ast.alias) -> str:
    """Return the name that a part of an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def names_of(nodes: Iterable[ast.AST]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each name is bound, and how often it is read."""
    bound, loaded = Counter[str](), Counter[str]()
    for node in nodes:
        match node:
            case ast.alias():
                bound[bound_by(node)] += 1
            case ast.Name(name, ast.Load()):
                loaded[name] += 1
            case (
                ast.Name(name)
                | ast.ClassDef(name)
                | ast.FunctionDef(name)
                | ast.AsyncFunctionDef(name)
            ):
                bound[name] += 1
    return bound, loaded


def returned(function: Function) -> list[ast.expr]:
    """Return what a function may return, without ``None`` and what functions inside of it return."""
    values, todo = [], list[ast.AST](function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            values.append(node.value)
        elif isinstance(node, ast.stmt) and not isinstance(node, Function | ast.ClassDef):
            todo += inner_statements(node)
    return [value for value in values if not (isinstance(value, ast.Constant) and not value.value)]


def functions_in(function: Function) -> Iterator[Function]:
    """Yield the functions in a function, but not what is in these or in classes."""
    todo = [*function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, Function):
            yield node
        elif not isinstance(node, ast.ClassDef):
            todo += inner_statements(node)


def may_only_lack_vllm(node: ast.stmt, caught: frozenset[str]) -> bool:
    """Return whether only something that a release lacks can make a statement raise an exception of
    the kinds that a handler catches (``caught``)."""
    match node:
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] == "vllm"
        case ast.Import(names):
            return all(alias.name.partition(".")[0] == "vllm" for alias in names)
        case ast.Assign(value=value) | ast.Return(value):
            if isinstance(value, (ast.Constant, ast.Name)):
                return True
        case ast.Pass():
            return True
    # Only imports raise ImportError, but a called function may contain one.
    is_simple = isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return)
    only_import = is_simple and bool(caught) and caught <= OF_IMPORT
    return only_import and all(_says(p) for p in walk(node) if isinstance(p, ast.Call))
