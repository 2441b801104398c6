"""Definitions as texts, from a syntax tree. ``api_history/definitions.py`` says what they mean."""

from __future__ import annotations

import ast

from pytest_vllm_regress.answers.api_history.source import last_name

MAX_TEXT = 72
"""Characters of a default or an annotation that are kept."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_MARKS = frozenset(
    {"staticmethod", "classmethod", "property", "cached_property", "abstractmethod", "overload"}
)
_COLLECTIONS = (ast.Dict, ast.List, ast.Set, ast.Tuple)


def shortened(node: ast.AST | None) -> str:
    """Return the source text of an expression on one line, of bounded length."""
    if node is None:
        return ""
    try:
        source = ast.unparse(node)
    except (RecursionError, ValueError):
        return "..."
    if isinstance(node, _COLLECTIONS) and len(source) > MAX_TEXT:
        return "..."
    text = " ".join(source.split())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def function_text(node: FunctionNode) -> str:
    """Return the definition of a function, without annotations."""
    marks = "".join(f"@{name} " for name in _decorators(node) if name in _MARKS)
    forwards = _forwards(node)
    return (
        f"{marks}{'async ' * isinstance(node, ast.AsyncFunctionDef)}def({_parameters(node.args)})"
        + (f" > {forwards}" if forwards else "")
    )


def class_text(node: ast.ClassDef) -> str:
    """Return the definition of a class: its bases, and whether it is a dataclass."""
    mark = "" if {"dataclass", "config"}.isdisjoint(_decorators(node)) else "@dataclass "
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return f"{mark}class({', '.join(map(shortened, bases))})"


def _decorators(node: FunctionNode | ast.ClassDef) -> list[str]:
    return [last_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]


def _parameters(arguments: ast.arguments) -> str:
    return ast.unparse(
        ast.arguments(
            posonlyargs=[ast.arg(argument.arg) for argument in arguments.posonlyargs],
            args=[ast.arg(argument.arg) for argument in arguments.args],
            vararg=arguments.vararg and ast.arg(arguments.vararg.arg),
            kwonlyargs=[ast.arg(argument.arg) for argument in arguments.kwonlyargs],
            kw_defaults=[default and _default(default) for default in arguments.kw_defaults],
            kwarg=arguments.kwarg and ast.arg(arguments.kwarg.arg),
            defaults=[_default(default) for default in arguments.defaults],
        )
    )


def _default(node: ast.expr) -> ast.expr:
    """Return a default that is short as text and can be parsed again."""
    text = shortened(node)
    return ast.Name("..." if text.endswith("...") else text)


def _forwards(node: FunctionNode) -> str:
    """Return the class to which a function passes its ``**kwargs``; empty if there is none, or more
    than one."""
    if node.args.kwarg is None:
        return ""
    names = {
        last_name(call.func)
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and any(
            word.arg is None and getattr(word.value, "id", "") == node.args.kwarg.arg
            for word in call.keywords
        )
    }
    classes = [name for name in names if name[:1].isupper()]
    return classes[0] if len(classes) == 1 else ""
