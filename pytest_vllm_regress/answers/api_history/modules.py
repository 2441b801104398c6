"""The symbols of one module, from its source: names, functions, classes and their members.

Nothing is imported.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from .definitions import class_text, function_text, shortened
from .lazy import lazy_names

ROOT = "vllm"
_LAZY = re.compile(r"(\.[\w.]*|vllm[\w.]*):(\w+)")
_REMOVED = re.compile(r"(?i)deprecat")
_ANNOUNCED = re.compile(r"(?i)remov|instead|\bin v?\d|replaced|no effect|ignored")
MAX_MESSAGE = 400
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclasses.dataclass(frozen=True)
class Module:
    """Symbols of a module by qualified name, modules whose names it imports by ``*``, and
    deprecations as message -> qualified name."""

    symbols: dict[str, str]
    stars: tuple[str, ...]
    deprecations: dict[str, str]


def module_name(path: str) -> str:
    """Return the dotted name of a module from its path in a wheel."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def read_module(tree: ast.Module, path: str) -> Module:
    """Return the symbols of a parsed module."""
    reader = _Reader(module_name(path), path.endswith("/__init__.py"))
    reader.read(tree.body, "", runtime=True)
    if (names := lazy_names(tree.body)) is not None:
        del reader.symbols["__getattr__"]
        for name in names - reader.symbols.keys():
            reader.symbols[name] = "="
    return Module(reader.symbols, tuple(reader.stars), reader.deprecations)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and those nested in them, but not those of nested functions
    and classes."""
    for node in body:
        yield node
        if not isinstance(node, (*Function, ast.ClassDef)):
            yield from statements(inner_statements(node))


def inner_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly in a compound statement: all its branches and handlers."""
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, ())
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from handler.body


def is_type_checking(test: ast.expr) -> bool:
    return (
        test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    ) == "TYPE_CHECKING"


def absolute(module: str, is_package: bool, level: int, name: str | None) -> str:
    """Return the module that ``from ...name import`` means in ``module``."""
    if not level:
        return name or ""
    parts = module.split(".")
    base = parts[: len(parts) - level + is_package]
    return ".".join([*base, *([name] if name else [])])


class _Reader:
    def __init__(self, module: str, is_package: bool) -> None:
        self._module, self._is_package = module, is_package
        self.symbols: dict[str, str] = {}
        self.stars: list[str] = []
        self.deprecations: dict[str, str] = {}

    def read(self, body: Sequence[ast.stmt], prefix: str, *, runtime: bool) -> None:
        """Read the statements of the module or of a class, of which ``prefix`` is the qualified
        name with a dot."""
        for number, node in enumerate(body):
            if isinstance(node, Function):
                self._add(prefix + node.name, function_text(node), runtime)
                self._deprecations_of(node, prefix + node.name)
                if node.name == "__getattr__" and not prefix:
                    self._lazy_names(node.body)
            elif isinstance(node, ast.ClassDef):
                self._class(node, prefix + node.name, runtime)
            elif isinstance(node, (ast.Import, ast.ImportFrom)) and not prefix:
                self._import(node, runtime)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                self._assignment(node, prefix, runtime)
                self._field_note(node, body[number + 1 : number + 2], prefix)
            elif isinstance(node, ast.If) and is_type_checking(node.test):
                self.read(node.body, prefix, runtime=False)
                self.read(node.orelse, prefix, runtime=runtime)
            else:
                self.read(list(inner_statements(node)), prefix, runtime=runtime)

    def _add(self, name: str, definition: str, runtime: bool) -> None:
        if runtime or name not in self.symbols:
            kept = self.symbols.get(name, "")
            if (
                runtime
                and kept.startswith(("def", "class", "@", "async"))
                and definition.startswith(("=", "<"))
            ):
                return  # `try: class X ... except ImportError: X = None`
            self.symbols[name] = definition if runtime else f"?{definition}"

    def _class(self, node: ast.ClassDef, name: str, runtime: bool) -> None:
        self._add(name, class_text(node), runtime)
        self._decorated(node, name)
        self.read(node.body, f"{name}.", runtime=runtime)
        for method in node.body:
            if isinstance(method, Function) and method.args.args:
                self._instance_attributes(method, name)

    def _instance_attributes(
        self, method: ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> None:
        own = method.args.args[0].arg
        classes = {argument.arg: _class_in(argument.annotation) for argument in method.args.args}
        for node in statements(method.body):
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            for target in targets:
                for item in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if (
                        isinstance(item, ast.Attribute)
                        and isinstance(item.value, ast.Name)
                        and item.value.id == own
                    ):
                        kind = _class_of(node, classes)
                        known = self.symbols.get(f"{name}.{item.attr}")
                        if known is None or (known == "." and kind):
                            self.symbols[f"{name}.{item.attr}"] = f".: {kind}" if kind else "."

    def _import(self, node: ast.Import | ast.ImportFrom, runtime: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == ROOT:
                    self._add(
                        alias.asname or ROOT, f"< {alias.name if alias.asname else ROOT}", runtime
                    )
            return
        module = absolute(self._module, self._is_package, node.level, node.module)
        if module.partition(".")[0] != ROOT:
            return
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(module)
            else:
                self._add(alias.asname or alias.name, f"< {module}:{alias.name}", runtime)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, prefix: str, runtime: bool) -> None:
        if isinstance(node, ast.AnnAssign):
            if isinstance(node.target, ast.Name):
                value = f" = {shortened(node.value)}" if node.value is not None else ""
                text = f": {shortened(node.annotation)}{value}" if prefix else "="
                if prefix or node.value is not None:
                    self._add(prefix + node.target.id, text, runtime)
            return
        for target in node.targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name):
                    plain = prefix and isinstance(node.value, ast.Constant)
                    same = (
                        isinstance(node.value, ast.Name)
                        and node.value.id in self.symbols
                        and not prefix
                    )
                    text = (
                        f"< {self._module}:{node.value.id}"
                        if same and isinstance(node.value, ast.Name)
                        else "="
                    )
                    self._add(
                        prefix + name.id, f"= {shortened(node.value)}" if plain else text, runtime
                    )
        if not prefix and isinstance(node.value, ast.Dict):
            self._lazy_dict(node.value)

    def _lazy_names(self, body: Sequence[ast.stmt]) -> None:
        for node in statements(body):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                self._lazy_dict(node.value)

    def _lazy_dict(self, node: ast.Dict) -> None:
        """Read a table of names that ``__getattr__`` imports: ``{"LLM":

        ".entrypoints.llm:LLM"}``.
        """
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                match = _LAZY.fullmatch(str(value.value))
                if match and isinstance(key.value, str):
                    level = len(match[1]) - len(match[1].lstrip("."))
                    module = absolute(
                        self._module, self._is_package, level, match[1].lstrip(".") or None
                    )
                    self._add(key.value, f"< {module}:{match[2]}", runtime=True)

    def _decorated(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> None:
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                function = shortened(decorator.func).rpartition(".")[2]
                texts = list(filter(None, map(text_of, decorator.args)))
                texts += [
                    text_of(word.value)
                    for word in decorator.keywords
                    if word.arg == "additional_message"
                ]
                if function == "deprecated" and texts:
                    self._keep_note(f"deprecated: {texts[0]}", name)
                elif function == "deprecate_kwargs" and texts:
                    self._keep_note(f"deprecated arguments: {' '.join(texts)}", name)

    def _deprecations_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> None:
        self._decorated(node, name)
        for inner in statements(node.body):
            if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
                if "warn" in shortened(inner.value.func):
                    self._note(" ".join(map(text_of, inner.value.args[:1])), name)
            elif isinstance(inner, ast.Assign):
                self._note(text_of(inner.value), name)

    def _field_note(
        self, node: ast.Assign | ast.AnnAssign, following: Sequence[ast.stmt], prefix: str
    ) -> None:
        """Note a deprecation in the text of a constant, or in the text that follows a field."""
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        name = prefix + (target.id if isinstance(target, ast.Name) else "")
        if not prefix:
            self._note(text_of(node.value), name)
        for note in following:
            if prefix and isinstance(note, ast.Expr):
                self._note(text_of(note.value), name)

    def _note(self, message: str, name: str) -> None:
        if _REMOVED.search(message) and _ANNOUNCED.search(message):
            self._keep_note(message, name)

    def _keep_note(self, message: str, name: str) -> None:
        self.deprecations[" ".join(message.split())[:MAX_MESSAGE]] = name


def text_of(node: ast.AST | None) -> str:
    """Return the text of a string, also of one with placeholders; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def _class_of(node: ast.stmt, classes: dict[str, str]) -> str:
    """Return the class of what a statement assigns, where an annotation or a call says it."""
    if isinstance(node, ast.AnnAssign):
        return _class_in(node.annotation)
    value = getattr(node, "value", None)
    if isinstance(value, ast.Name):
        return classes.get(value.id, "")
    if (
        isinstance(value, ast.Attribute)
        and isinstance(value.value, ast.Name)
        and classes.get(value.value.id)
    ):
        return f"{classes[value.value.id]}.{value.attr}"
    function = value.func if isinstance(value, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        function = function.value
    return function.id if isinstance(function, ast.Name) and function.id[:1].isupper() else ""


def _class_in(annotation: ast.expr | None) -> str:
    """Return the class in an annotation, without ``Optional`` and ``| None``; empty for anything
    else."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value if annotation.value.isidentifier() else ""
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Optional":
        return _class_in(annotation.slice)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant):
        return _class_in(annotation.left)
    return annotation.id if isinstance(annotation, ast.Name) and annotation.id[:1].isupper() else ""
