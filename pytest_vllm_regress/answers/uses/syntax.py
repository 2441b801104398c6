"""Parts of Python's syntax tree that the reader of uses asks about."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from ..api_history.source import last_name
from .guards import Names
from .use import Override

ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
"""Statements that leave a block."""
MAX_ALTERNATIVES = 8
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
ALL_CAUGHT = frozenset(("module", "name", "attribute", "argument"))
_CAUGHT = {
    "ImportError": {"module", "name"},
    "ModuleNotFoundError": {"module"},
    "AttributeError": {"attribute"},
    "TypeError": {"argument"},
    "Exception": ALL_CAUGHT,
    "BaseException": ALL_CAUGHT,
}


def expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement without those of nested statements."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def chain(node: ast.expr) -> list[ast.expr]:
    """Return the parts of ``a.b().c`` from the whole to its first name."""
    parts = [node]
    while isinstance(node, (ast.Attribute, ast.Call, ast.Await)):
        node = node.func if isinstance(node, ast.Call) else node.value
        parts.append(node)
    return parts


def keys_of(node: ast.expr | None) -> dict[str, int] | None:
    """Return the keys of a dict that is written out, with their lines."""
    match node:
        case ast.Dict(keys):
            constants = [key for key in keys if isinstance(key, ast.Constant)]
            return {key.value: key.lineno for key in constants if isinstance(key.value, str)}
        case ast.Call(ast.Name("dict"), _, keywords):
            return {word.arg: word.value.lineno for word in keywords if word.arg is not None}
    return None


def kinds_caught(handler: ast.ExceptHandler) -> frozenset[str]:
    if handler.type is None:
        return ALL_CAUGHT
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return frozenset[str]().union(*(_CAUGHT.get(last_name(kind), ()) for kind in types))


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
    handled = [statement for handler in node.handlers for statement in handler.body]
    if not all(isinstance(statement, ast.Pass) for statement in handled):
        return False
    imports = [entry for entry in node.body if isinstance(entry, (ast.Import, ast.ImportFrom))]
    imported = {_bound(alias) for statement in imports for alias in statement.names}
    bound, loaded = _names(tree)
    inside = sum((_names(statement)[1] for statement in node.body), Counter())
    return any(bound[name] == 1 and loaded[name] > inside[name] for name in imported)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _names(tree: ast.AST) -> tuple[Counter[str], Counter[str]]:
    """Return how often each name is bound, and how often it is read."""
    bound, loaded = Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        match node:
            case ast.alias():
                bound[_bound(node)] += 1
            case ast.Name(name, ast.Load()):
                loaded[name] += 1
            case ast.Name(id=name) | ast.ClassDef(name) | ast.FunctionDef(name):
                bound[name] += 1
            case ast.AsyncFunctionDef(name):
                bound[name] += 1
    return bound, loaded


def override(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Override:
    arguments = node.args
    names = tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))
    count = len(arguments.posonlyargs) + len(arguments.args)
    if not any(last_name(decorator) == "staticmethod" for decorator in node.decorator_list):
        count -= 1  # self
    return Override(names, count, arguments.vararg is not None, arguments.kwarg is not None)


def merged(one: Names, other: Names) -> Names:
    """Return what names mean after one of two branches."""
    return {
        name: tuple(dict.fromkeys((*one.get(name, ()), *other.get(name, ()))))[:MAX_ALTERNATIVES]
        for name in {**one, **other}
    }
