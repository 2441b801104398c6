"""Evaluate Python expressions as if no environment variable were set."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_PARTS = 200
"""Maximum number of nodes that are evaluated, including those of the variables' values."""
_METHODS = ("lower", "upper", "strip")
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
}
Names = Mapping[str, "ast.expr | None"]


def by_default(node: ast.expr | None, names: Names) -> Any:
    """Return the value of an expression; None if it is not known. ``names``: variables, and fields of
    classes, that have one value."""
    try:
        return _value(node, names, iter(range(MAX_PARTS)))
    except (LookupError, TypeError, ValueError):
        return None


def _value(node: ast.expr | None, names: Names, budget: Iterator[int]) -> Any:
    """Raises ``LookupError`` if the value is not known."""
    if next(budget, None) is None:
        raise LookupError

    def inner(part: ast.expr | None) -> Any:
        return _value(part, names, budget)

    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name) if names.get(name) is not None:
            return inner(names[name])
        case ast.Tuple(items) | ast.List(items) | ast.Set(items):
            return [inner(item) for item in items]
        case ast.UnaryOp(ast.Not(), operand):
            return not inner(operand)
        case ast.BoolOp(ast.Or(), values):
            return any(map(inner, values))
        case ast.BoolOp(ast.And(), values):
            return all(map(inner, values))
        case ast.Compare(left, [sign], [right]) if type(sign) in _COMPARISONS:
            return _COMPARISONS[type(sign)](inner(left), inner(right))
        case ast.Call(ast.Attribute(text, name), []) if name in _METHODS:
            return getattr(str(inner(text)), name)()
        case ast.Call(ast.Name(name), [argument]) if name in _CONVERSIONS:
            return _CONVERSIONS[name](inner(argument))
        case ast.Call(_, [ast.Constant(), *rest]) if _reads_environment(node):
            return inner(rest[0]) if rest else ""
    raise LookupError


def _reads_environment(node: ast.Call) -> bool:
    return ast.unparse(node.func) in ("os.getenv", "getenv", "os.environ.get", "environ.get")
