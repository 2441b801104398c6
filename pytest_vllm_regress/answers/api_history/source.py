"""Parts of Python sources that the history and the reader of a project's uses both ask about."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def module_name(path: str) -> str:
    """Return the dotted name of a module from its path in a wheel or a project."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def absolute(module: str, is_package: bool, level: int, name: str | None) -> str:
    """Return the module that ``from ...name import`` means in ``module``."""
    if not level:
        return name or ""
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - level + is_package], *([name] if name else [])])


def inner_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly in a compound statement: all its branches and handlers."""
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, ())
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from handler.body


def last_name(node: object) -> str:
    """Return the name of a variable or an attribute without what is before it; empty for others."""
    name: str = getattr(node, "attr", getattr(node, "id", ""))
    return name


def is_type_checking(test: ast.expr) -> bool:
    return last_name(test) == "TYPE_CHECKING"


def text_of(node: ast.AST | None) -> str:
    """Return the text of a string, also of one with placeholders; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""
