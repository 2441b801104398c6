"""Names that a module's ``__getattr__`` makes: those for which it tests, if it refuses all others."""

from __future__ import annotations

import ast
from collections.abc import Sequence

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def lazy_names(body: Sequence[ast.stmt]) -> frozenset[str] | None:
    """Return the names that the ``__getattr__`` of a module has; None if there is none, or if the
    source does not say which."""
    function = next(
        (node for node in body if isinstance(node, Function) and node.name == "__getattr__"), None
    )
    if function is None or not function.args.args or not _ends_with_raise(function.body):
        return None
    own, tables = function.args.args[0].arg, _tables(body)
    names: set[str] = set()
    tests = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Compare) and _is_name(node.left, own)
    ]
    for test in tests:
        listed = _listed(test, tables)
        if listed is None:
            return None
        names |= listed
    return frozenset(names) if tests else None


def _ends_with_raise(body: Sequence[ast.stmt]) -> bool:
    last = body[-1]
    return isinstance(last, ast.Raise) or (
        isinstance(last, ast.If) and bool(last.orelse) and _ends_with_raise(last.orelse)
    )


def _listed(test: ast.Compare, tables: dict[str, set[str]]) -> set[str] | None:
    """Return the names for which a test is true; None if they are not written out."""
    operator, value = test.ops[0], test.comparators[0]
    if isinstance(operator, ast.Eq) and isinstance(value, ast.Constant):
        return {str(value.value)}
    if isinstance(operator, (ast.In, ast.NotIn)):
        return tables.get(value.id) if isinstance(value, ast.Name) else _strings(value)
    return None


def _tables(body: Sequence[ast.stmt]) -> dict[str, set[str]]:
    """Return the strings in the dicts, lists, tuples and sets that a module assigns to its names."""
    tables = {}
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            strings = _strings(node.value)
            if isinstance(target, ast.Name) and strings is not None:
                tables[target.id] = strings
    return tables


def _strings(node: ast.expr) -> set[str] | None:
    """Return the strings in a literal; None if it is another expression, or has anything but
    strings."""
    items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", None)
    if items is None:
        return None
    constants = [
        item for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    return {str(item.value) for item in constants} if len(constants) == len(items) else None


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
