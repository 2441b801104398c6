"""What a test asks for, from its source alone; and what a function returns, with arguments in it."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Mapping

from ..api_history.definitions import last_name, text_of, walk
from .scope import Names, resolve

MAX_CALLS = 4
"""Maximum depth of calls that are followed through the project's functions."""
MAX_TABLE = 200
"""Maximum number of entries that are read of a table whose keys are releases."""
MAX_INLINED = 40
"""Maximum number of nodes of an expression into which local names are substituted."""
_V1_NAME = re.compile(r"_*(?:is|use|using)_(?:vllm_)?v1(?:_engine)?")
_ENGINE_NAME = re.compile(r"(?i)vllm|engine")
"""Names of variables that hold "V0" or "V1" as the engine, rather than as a model or a protocol."""
LISTS_PARAMETERS = ("signature", "getfullargspec", "fields")
_V1_VARIABLE = "vllm.envs.VLLM_USE_V1"
OF_VERSION = "a test of the version"
OF_ATTRIBUTE = "a test of what an object has"
_VERSION_IN_NAME = re.compile(
    r"(?i)vllm\w*(?:ver(?:sion)?s?(?:_|$)|_v?\d|newer|older|equal|at_?least|_(?:ge|gt|le|lt|eq)(?:_|$)|legacy|compat)"
    r"|(?:is|has)_(?:old|new|legacy)_vllm"
)
"""Names of what compares the version of vLLM."""
_OF_MODEL = re.compile(
    r"(?:(?:hf|text|vision|audio|pretrained)_)*(?:config|cfg)|\w*args|tokenizer|processor"
)
TELLS = re.compile(
    r"_*(?:has|is|can|should|supports?|uses?|needs?|accepts?|takes|requires?|check)_", re.IGNORECASE
)
"""Names of functions whose result tells what an object has."""


def inlined(value: ast.expr | None, function: ast.AST) -> ast.expr | None:
    """Return what a function returns, with the expressions of the names that it binds once in it."""
    if not isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        return value
    bound: dict[str, ast.expr] = {}
    stored = Counter[str]()
    for node in walk(function):
        match node:
            case ast.Assign([ast.Name(name)], expression) if is_small(expression):
                bound[name] = expression
            case ast.Name(name, ast.Store()):
                stored[name] += 1
    once = {name: expression for name, expression in bound.items() if stored[name] == 1}
    for _ in range(MAX_CALLS if once else 0):
        if is_small(value):
            value = Filled(once).visit(copy.deepcopy(value))
    return value


def each(values: ast.expr) -> list[ast.expr]:
    """Return the tests of which ``any`` or ``all`` of a list or a generator asks for one or all; none
    if they are not written out."""
    match values:
        case ast.Tuple(parts) | ast.List(parts):
            return parts
        case ast.GeneratorExp(
            element, [ast.comprehension(ast.Name(name), series, [])]
        ) | ast.ListComp(element, [ast.comprehension(ast.Name(name), series, [])]) if is_small(
            element
        ):
            parts = getattr(series, "elts", [])[:MAX_TABLE]
            return [Filled({name: part}).visit(copy.deepcopy(element)) for part in parts]
    return []


def is_small(node: ast.AST) -> bool:
    """Return whether an expression has no more nodes than may be copied for a name."""
    return all(number < MAX_INLINED for number, _ in enumerate(walk(node)))


class Filled(ast.NodeTransformer):
    """Replaces parameters with the arguments of a call."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._given.get(node.id, node))


def asks_for_v1(test: ast.expr, names: Names) -> bool | None:
    """Return whether a test, such as ``VLLM_VERSION == "V1"``, is true for V1 (and not for V0); None
    if it asks for neither engine."""
    match test:
        case ast.Compare(left, [ast.Eq() | ast.NotEq() as kind], [ast.Constant("V0" | "V1" as to)]):
            is_engine = _ENGINE_NAME.search(last_name(left)) is not None
            return (to == "V1") == isinstance(kind, ast.Eq) if is_engine else None
    return True if _is_v1(test, names) else None


def of_engine(names: Names, *, v1: bool) -> Names:
    """Return the names without what the other engine has of each, where both have it."""
    chosen = {
        name: tuple(path for path in paths if path.startswith("vllm.v1.") == v1)
        for name, paths in names.items()
        if len(paths) > 1
    }
    return {**names, **{name: paths for name, paths in chosen.items() if paths}}


def _is_v1(test: ast.expr, names: Names) -> bool:
    """Return whether an expression is ``vllm.envs.VLLM_USE_V1``, or a name or a call such as
    ``self._is_vllm_v1()``."""
    name = last_name(test.func if isinstance(test, ast.Call) else test)
    return _V1_NAME.fullmatch(name) is not None or _V1_VARIABLE in resolve(test, names)


def names_version(node: ast.AST) -> bool:
    """Return whether a name says that it is about the version of vLLM."""
    name = last_name(node)
    return "vllm" in name.lower() and _VERSION_IN_NAME.search(name) is not None


def is_of_model(owner: ast.expr) -> bool:
    """Return whether an object is the configuration of a model or of the project, a tokenizer, or
    arguments: what these have does not depend on the release."""
    return _OF_MODEL.fullmatch(last_name(owner)) is not None


def asks_for_attribute(test: ast.expr) -> ast.expr | None:
    """Return the object of which a test asks whether it has a public attribute, or a function a
    parameter; None for another test."""
    match test:
        case ast.Compare(left, [ast.Is() | ast.IsNot()], [ast.Constant(None)]):
            return asks_for_attribute(left)
        case ast.Compare(ast.Constant(), [ast.In() | ast.NotIn()], [container]):
            calls = (part for part in walk(container) if isinstance(part, ast.Call) and part.args)
            return next((c.args[0] for c in calls if last_name(c.func) in LISTS_PARAMETERS), None)
        case ast.Call(ast.Name("bool" | "callable"), [value]):
            return asks_for_attribute(value)
        case ast.Call(ast.Name("hasattr" | "getattr"), [owner, attribute, *_]):
            return owner if text_of(attribute)[:1] not in ("", "_") else None
    return None


def is_probe(node: ast.AST) -> bool:
    """Return whether a part of a test asks whether something has a name."""
    match node:
        case ast.Compare(_, [ast.In() | ast.NotIn(), *_]):
            return True
        case ast.Call(function):
            return last_name(function) in ("hasattr", "getattr", "find_spec")
    return False


def probed_names(test: ast.AST) -> frozenset[str]:
    """Return the names for which a test asks: by ``hasattr``, ``in``, or ``find_spec``."""
    asked: list[ast.expr] = []
    for node in walk(test):
        match node:
            case ast.Call(_, arguments):
                asked += arguments
            case ast.Compare(left) if is_probe(node):
                asked.append(left)
    return frozenset(filter(None, map(text_of, asked)))
