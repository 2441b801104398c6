"""Parts of Python's syntax tree that the reader of uses asks about."""

from __future__ import annotations

import ast
import collections
import functools
import operator
from collections.abc import Iterator

from .use import Override

Names = dict[str, tuple[str, ...]]
"""What local names mean: paths of which the first that exists in a release is meant."""
ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
"""Statements that leave a block."""
MAX_ALTERNATIVES = 8
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Text = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple)
"""Nodes that may hold a command, or names in a string."""
_CAUGHT = {
    "ImportError": {"module", "name"},
    "ModuleNotFoundError": {"module"},
    "AttributeError": {"attribute"},
    "TypeError": {"argument"},
}
ALL_CAUGHT = {"module", "name", "attribute", "argument"}


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name; empty for anything else."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement without those of nested statements."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    for _, value in ast.iter_fields(node):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.expr):
                yield item
            elif isinstance(item, ast.withitem):
                yield item.context_expr


def chain(node: ast.expr) -> list[ast.expr]:
    """Return the parts of ``a.b().c`` from the whole to its first name."""
    parts = [node]
    while isinstance(node, (ast.Attribute, ast.Call, ast.Await)):
        node = node.func if isinstance(node, ast.Call) else node.value
        parts.append(node)
    return parts


def keys_of(node: ast.expr) -> dict[str, int] | None:
    """Return the keys of a dict that is written out, with their lines."""
    if isinstance(node, ast.Dict):
        keys = [
            key for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        return {str(key.value): key.lineno for key in keys}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {word.arg: word.value.lineno for word in node.keywords if word.arg is not None}
    return None


def kinds_caught(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return set(ALL_CAUGHT)
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = [
        node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in types
    ]
    return functools.reduce(
        operator.or_,
        (
            ALL_CAUGHT if n in ("Exception", "BaseException") else _CAUGHT.get(n, set())
            for n in names
        ),
        set(),
    )


def raises(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler only passes the failure on."""
    return isinstance(handler.body[-1], ast.Raise)


def makes_modules(tree: ast.AST) -> bool:
    """Return whether a file makes modules of its own, so that dotted names in its strings may mean
    these: a test with a fake vLLM."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("modules", "ModuleType"))
        or (isinstance(node, ast.Constant) and node.value == "sys.modules")
        for node in ast.walk(tree)
    )


def leaves_names_undefined(node: ast.Try | ast.TryStar, tree: ast.AST) -> bool:
    """Return whether the handlers ignore that an import failed although the file needs one of its
    names elsewhere."""
    if not all(
        isinstance(statement, ast.Pass) for handler in node.handlers for statement in handler.body
    ):
        return False
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for statement in node.body
        if isinstance(statement, (ast.Import, ast.ImportFrom))
        for alias in statement.names
    }
    bound, loaded = _bindings(tree), _loads(tree)
    inside = collections.Counter(
        name for statement in node.body for name in _loads(statement).elements()
    )
    return any(bound[name] == 1 and loaded[name] > inside[name] for name in imported)


def _bindings(tree: ast.AST) -> collections.Counter[str]:
    names: collections.Counter[str] = collections.Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names[node.asname or node.name.partition(".")[0]] += 1
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names[node.id] += 1
        elif isinstance(node, (*Function, ast.ClassDef)):
            names[node.name] += 1
    return names


def _loads(tree: ast.AST) -> collections.Counter[str]:
    return collections.Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def defined_in(node: ast.ClassDef) -> set[str]:
    return {
        statement.name
        for statement in node.body
        if isinstance(statement, (*Function, ast.ClassDef))
    }


def override(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Override:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    names = tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))
    static = any(
        getattr(decorator, "id", "") == "staticmethod" for decorator in node.decorator_list
    )
    return Override(
        names,
        len(positional) - (not static),
        arguments.vararg is not None,
        arguments.kwarg is not None,
    )


def merged(one: Names, other: Names) -> Names:
    """Return what names mean after one of two branches."""
    return {
        name: tuple(dict.fromkeys((*one.get(name, ()), *other.get(name, ()))))[:MAX_ALTERNATIVES]
        for name in {**one, **other}
    }
