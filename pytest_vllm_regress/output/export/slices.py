"""The part of a test module that one function needs, as source text without pytest's decorators."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

OWN_PACKAGE = "pytest_vllm_regress"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class SourceSlice:
    """``imports`` and ``text``: source of the imports and definitions. ``own``: names that come
    from this project. ``attributes``: what is read of each name, for example ``{"vllm_server":
    {"post"}}``. ``fixtures``: parameters of each function that is a fixture of the module.
    """

    imports: tuple[str, ...]
    text: str
    own: frozenset[str]
    attributes: dict[str, frozenset[str]]
    fixtures: dict[str, tuple[str, ...]]


class ModuleOfTests:
    """A parsed test module."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes: dict[str, ast.stmt] = {}
        self._imports: dict[str, str] = {}
        self._own: set[str] = set()
        for node in ast.parse(source).body:
            self._add(node)

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                if isinstance(node, ast.ImportFrom) and (
                    node.level or (node.module or "").startswith(OWN_PACKAGE)
                ):
                    self._own.add(name)
                elif not isinstance(node, ast.ImportFrom):
                    self._imports[name] = ast.unparse(ast.Import([alias]))
                elif node.module != "__future__":
                    self._imports[name] = ast.unparse(ast.ImportFrom(node.module, [alias], 0))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._nodes[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self._nodes.update(
                    {name.id: node for name in ast.walk(target) if isinstance(name, ast.Name)}
                )

    def fixtures(self) -> dict[str, tuple[str, ...]]:
        """Return the parameters of each fixture that the module defines."""
        return {
            name: tuple(argument.arg for argument in node.args.args)
            for name, node in self._nodes.items()
            if isinstance(node, ast.FunctionDef) and self.is_decorated_by(name, "fixture")
        }

    def is_generator(self, name: str) -> bool:
        """Whether a function yields."""
        return any(
            isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(self._nodes[name])
        )

    def is_decorated_by(self, name: str, word: str) -> bool:
        """Whether a decorator of the function has this word in its source."""
        decorators = getattr(self._nodes[name], "decorator_list", ())
        return any(word in ast.unparse(decorator) for decorator in decorators)

    def members_of(self, name: str) -> set[str]:
        """Return the methods of a class."""
        return {
            node.name
            for node in getattr(self._nodes[name], "body", ())
            if isinstance(node, Definition)
        }

    def slice(self, functions: Iterable[str]) -> SourceSlice:
        """Return what these functions need."""
        needed: dict[str, ast.stmt] = {}
        waiting, used = list(functions), set[str]()
        while waiting:
            name = waiting.pop()
            if name in needed or name not in self._nodes:
                continue
            needed[name] = self._nodes[name]
            names = set(_names(self._nodes[name]))
            used |= names
            waiting += sorted(names)
        statements = sorted(
            {id(node): node for node in needed.values()}.values(), key=lambda node: node.lineno
        )
        lines, fixtures = self._source.splitlines(), self.fixtures()
        return SourceSlice(
            imports=tuple(sorted({self._imports[name] for name in used & self._imports.keys()})),
            text="\n\n\n".join(
                "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in statements
            ),
            own=frozenset(used & self._own),
            attributes=_attributes(statements),
            fixtures={name: fixtures[name] for name in needed if name in fixtures},
        )


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that are read when the statement runs: not those of its annotations and
    decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Name):
                yield child.id
            elif isinstance(child, ast.AST):
                yield from _names(child)


def _attributes(statements: Iterable[ast.stmt]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found.setdefault(node.value.id, set()).add(node.attr)
    return {name: frozenset(attributes) for name, attributes in found.items()}
