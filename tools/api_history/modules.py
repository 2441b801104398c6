"""The symbols of one module, from its source: names, functions, classes and their members.

Nothing is imported.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_vllm_regress.answers.api_history.definitions import (
    absolute,
    inner_statements,
    is_type_checking,
    last_name,
    module_name,
    text_of,
)
from pytest_vllm_regress.answers.api_history.store import BRIEF

ROOT = "vllm"
_LAZY = re.compile(r"(\.*)([\w.]*):(\w+)")
_REMOVED = re.compile(r"(?i)deprecat")
_ANNOUNCED = re.compile(r"(?i)remov|instead|\bin v?\d|replaced|no effect|ignored")
MAX_MESSAGE = 400
MAX_TEXT = 72
"""Characters of a default or an annotation that are kept."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_MARKS = frozenset(
    {"staticmethod", "classmethod", "property", "cached_property", "abstractmethod", "overload"}
)
_COLLECTIONS = (ast.Dict, ast.List, ast.Set, ast.Tuple)


def read_module(tree: ast.Module, path: str) -> Module:
    """Return the symbols of a parsed module."""
    module = Module(module_name(path), path.endswith("/__init__.py"))
    module.read(tree.body)
    module.symbols |= dict.fromkeys(assigned_later(tree) - module.symbols.keys(), "=")
    if names := lazy_names(tree.body):
        del module.symbols["__getattr__"]
        module.symbols = dict.fromkeys(names, "=") | module.symbols
    return module


def assigned_later(tree: ast.Module) -> set[str]:
    """Return the names that a module only annotates, and that a function of it assigns."""
    annotated = {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and node.value is None
        and isinstance(node.target, ast.Name)
    }
    nodes = ast.walk(tree) if annotated else ()
    shared = (node.names for node in nodes if isinstance(node, ast.Global))
    return annotated.intersection(itertools.chain(*shared))


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and those nested in them, but not those of nested functions
    and classes."""
    for node in body:
        yield node
        if not isinstance(node, FunctionNode | ast.ClassDef):
            yield from statements(inner_statements(node))


def targets_of(node: ast.AST) -> list[ast.expr]:
    """Return what a statement assigns to, the parts of a tuple one by one."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = (part.elts if isinstance(part, ast.Tuple) else [part] for part in targets)
    return [part for group in parts for part in group if part is not None]


def items_of(node: ast.AST | None) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield keys and values of a dict that is written out; nothing for any other node."""
    if isinstance(node, ast.Dict):
        yield from zip(node.keys, node.values, strict=True)


class Module:
    """Symbols of a module by qualified name, modules whose names it imports by ``*``, and
    deprecations as message -> qualified name."""

    def __init__(self, name: str, is_package: bool) -> None:
        self._name, self._is_package = name, is_package
        self._runtime = True
        """Whether the statements that are read run, and are not for type checkers only."""
        self._is_brief = BRIEF.fullmatch(name) is not None
        self._is_branch = False
        """Whether the statements that are read may be left out for others."""
        self.symbols: dict[str, str] = {}
        self.stars: list[str] = []
        self.deprecations: dict[str, str] = {}

    def read(self, body: Sequence[ast.stmt], prefix: str = "") -> None:
        """Read the statements of the module or of a class, of which ``prefix`` is the qualified
        name with a dot."""
        for number, node in enumerate(body):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._function(node, prefix)
                case ast.ClassDef():
                    self._class(node, prefix + node.name)
                case ast.Import() | ast.ImportFrom() if not prefix:
                    self._import(node)
                case ast.Assign():
                    self._assign(node, prefix)
                case ast.AnnAssign():
                    self._annotated(node, prefix)
                case ast.If() if is_type_checking(node.test):
                    runtime, self._runtime = self._runtime, False
                    self.read(node.body, prefix)
                    self._runtime = runtime
                    self.read(node.orelse, prefix)
                case _:
                    before, self._is_branch = self._is_branch, True
                    self.read([*inner_statements(node)], prefix)
                    self._is_branch = before
            if isinstance(node, ast.Assign | ast.AnnAssign):
                # A deprecation is announced in a constant, or in the text that follows a field.
                notes = (
                    [
                        after.value
                        for after in body[number + 1 : number + 2]
                        if isinstance(after, ast.Expr)
                    ]
                    if prefix
                    else [node.value]
                )
                for note in notes:
                    self._note(text_of(note), prefix + getattr(targets_of(node)[0], "id", ""))

    def _add(self, name: str, definition: str) -> None:
        kept = self.symbols.get(name, "")
        if not self._runtime:
            self.symbols[name] = kept or f"?{definition}"
        # `try: class X ... except ImportError: X = None` has the class. Where plain values are left
        # out, `if HAS_IT: from vllm.x import X ... else: X = None` has the import.
        elif not (
            (kept.startswith(("def", "class", "@", "async")) and definition[0] in "=<")
            or (self._is_brief and self._is_branch and kept[:1] == "<" and definition == "=")
        ):
            self.symbols[name] = definition

    def _function(self, node: FunctionNode, prefix: str) -> None:
        name = prefix + node.name
        self._add(name, function_text(node))
        self._decorated(node, name)
        for inner in statements(node.body):
            if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
                if "warn" in shortened(inner.value.func):
                    self._note(" ".join(map(text_of, inner.value.args[:1])), name)
            elif isinstance(inner, ast.Assign):
                self._note(text_of(inner.value), name)
                if name == "__getattr__":
                    self._lazy_dict(inner.value)

    def _class(self, node: ast.ClassDef, name: str) -> None:
        self._add(name, class_text(node))
        self._decorated(node, name)
        self.read(node.body, f"{name}.")
        for method in node.body:
            if isinstance(method, FunctionNode) and method.args.args:
                self._instance_attributes(method, name)

    def _instance_attributes(self, method: FunctionNode, name: str) -> None:
        own = method.args.args[0].arg
        classes = {argument.arg: _class_in(argument.annotation) for argument in method.args.args}
        for node in statements(method.body):
            for item in targets_of(node):
                if isinstance(item, ast.Attribute) and getattr(item.value, "id", "") == own:
                    kind, key = _class_of(node, classes), f"{name}.{item.attr}"
                    known = self.symbols.get(key)
                    if known is None or (known == "." and kind):
                        self.symbols[key] = f".: {kind}" if kind else "."

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == ROOT:
                    target = alias.name if alias.asname else ROOT
                    self._add(alias.asname or ROOT, f"< {target}")
            return
        module = absolute(self._name, self._is_package, node.level, node.module)
        if module.partition(".")[0] != ROOT:
            return
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(module)
            else:
                self._add(alias.asname or alias.name, f"< {module}:{alias.name}")

    def _annotated(self, node: ast.AnnAssign, prefix: str) -> None:
        if isinstance(node.target, ast.Name) and (prefix or node.value is not None):
            value = f" = {shortened(node.value)}" if node.value is not None else ""
            text = f": {shortened(node.annotation)}{value}" if prefix else "="
            self._add(prefix + node.target.id, text)

    def _assign(self, node: ast.Assign, prefix: str) -> None:
        text = "="
        if prefix and isinstance(node.value, ast.Constant):
            text = f"= {shortened(node.value)}"
        elif not prefix and isinstance(node.value, ast.Name) and node.value.id in self.symbols:
            text = f"< {self._name}:{node.value.id}"
        for target in targets_of(node):
            if isinstance(target, ast.Name):
                self._add(prefix + target.id, text)
        if not prefix:
            self._lazy_dict(node.value)

    def _lazy_dict(self, node: ast.expr) -> None:
        """Read a table of names that ``__getattr__`` imports: ``{"LLM":

        ".entrypoints.llm:LLM"}``.
        """
        for key, value in items_of(node):
            match = _LAZY.fullmatch(text_of(value))
            name = text_of(key)
            if match and name and (match[1] or match[2].startswith(ROOT)):
                module = absolute(self._name, self._is_package, len(match[1]), match[2] or None)
                self._add(name, f"< {module}:{match[3]}")

    def _decorated(self, node: ast.ClassDef | FunctionNode, name: str) -> None:
        for call in node.decorator_list:
            if not isinstance(call, ast.Call):
                continue
            messages = [word.value for word in call.keywords if word.arg == "additional_message"]
            texts = list(filter(None, map(text_of, (*call.args, *messages))))
            match last_name(call.func), texts:
                case "deprecated", [text, *_]:
                    self._keep_note(f"deprecated: {text}", name)
                case "deprecate_kwargs", [_, *_]:
                    self._keep_note(f"deprecated arguments: {' '.join(texts)}", name)

    def _note(self, message: str, name: str) -> None:
        if _REMOVED.search(message) and _ANNOUNCED.search(message):
            self._keep_note(message, name)

    def _keep_note(self, message: str, name: str) -> None:
        self.deprecations[" ".join(message.split())[:MAX_MESSAGE]] = name


def _class_of(node: ast.stmt, classes: dict[str, str]) -> str:
    """Return the class of what a statement assigns, where an annotation or a call says it."""
    if isinstance(node, ast.AnnAssign):
        return _class_in(node.annotation)
    match getattr(node, "value", None):
        case ast.Name(id=name):
            return classes.get(name, "")
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if classes.get(name):
            return f"{classes[name]}.{attribute}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name))):
            return str(name) if name[:1].isupper() else ""
    return ""


def _class_in(annotation: ast.expr | None) -> str:
    """Return the class in an annotation, without ``Optional`` and ``| None``; empty for anything
    else."""
    match annotation:
        case ast.Constant(value=str(name)) if name.isidentifier():
            return name
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _class_in(inner)
        case ast.BinOp(left=left, right=ast.Constant()):
            return _class_in(left)
        case ast.Name(id=name) if name[:1].isupper():
            return name
    return ""


def lazy_names(body: Sequence[ast.stmt]) -> frozenset[str] | None:
    """Return the names that the ``__getattr__`` of a module makes: those for which it tests, if it
    refuses all others. None if there is none, or if the source does not say which."""
    functions = [n for n in body if isinstance(n, FunctionNode) and n.name == "__getattr__"]
    if not functions or not functions[0].args.args or not _ends_with_raise(functions[0].body):
        return None
    own = functions[0].args.args[0].arg
    tables = {
        getattr(targets_of(node)[0], "id", ""): node.value
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    }
    names: set[object] = set()
    for test in ast.walk(functions[0]):
        if isinstance(test, ast.Compare) and getattr(test.left, "id", "") == own:
            listed: ast.AST | None = test.comparators[0]
            if isinstance(test.ops[0], ast.Eq):
                listed = ast.List([test.comparators[0]])
            elif not isinstance(test.ops[0], ast.In | ast.NotIn):
                return None
            if isinstance(listed, ast.Name):
                listed = tables.get(listed.id)
            items = listed.keys if isinstance(listed, ast.Dict) else getattr(listed, "elts", None)
            if items is None:
                return None
            names.update(getattr(item, "value", None) for item in items)
    return frozenset(map(str, names)) if all(isinstance(n, str) for n in names) else None


def _ends_with_raise(body: Sequence[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.If) and last.orelse:
        return _ends_with_raise(last.orelse)
    return isinstance(last, ast.Raise)


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
    popped = sorted(_popped(node)) if forwards else []
    return (
        f"{marks}{'async ' * isinstance(node, ast.AsyncFunctionDef)}def({_parameters(node.args, popped)})"
        + (f" > {forwards}" if forwards else "")
    )


def class_text(node: ast.ClassDef) -> str:
    """Return the definition of a class: its bases, and whether it is a dataclass."""
    mark = "" if {"dataclass", "config"}.isdisjoint(_decorators(node)) else "@dataclass "
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return f"{mark}class({', '.join(map(shortened, bases))})"


def _decorators(node: FunctionNode | ast.ClassDef) -> list[str]:
    return [last_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]


def _popped(node: FunctionNode) -> set[str]:
    """Return the keywords that a function takes out of its ``**kwargs``, so that it accepts them
    whatever it passes the others to."""
    rest = node.args.kwarg.arg if node.args.kwarg else ""
    popped = set()
    for part in ast.walk(node):
        match part:
            case ast.Call(ast.Attribute(ast.Name(name), "pop"), [key, *_]) if name == rest:
                popped.add(text_of(key))
            case ast.Subscript(ast.Name(name), key, ast.Del()) if name == rest:
                popped.add(text_of(key))
    named = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return {name for name in popped - named if name.isidentifier()}


def _parameters(arguments: ast.arguments, popped: Sequence[str] = ()) -> str:
    return ast.unparse(
        ast.arguments(
            posonlyargs=[ast.arg(argument.arg) for argument in arguments.posonlyargs],
            args=[ast.arg(argument.arg) for argument in arguments.args],
            vararg=arguments.vararg and ast.arg(arguments.vararg.arg),
            kwonlyargs=[
                *(ast.arg(argument.arg) for argument in arguments.kwonlyargs),
                *map(ast.arg, popped),
            ],
            kw_defaults=[
                *(default and _default(default) for default in arguments.kw_defaults),
                *(ast.Name("...") for _ in popped),
            ],
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
