"""Uses of vLLM in Python source: imports, attributes, calls, overridden methods, and strings.

The source is parsed, never run.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable

from ..api_history.source import inner_statements, is_type_checking, text_of
from .guards import MAX_PATH, VERSION, Releases, VersionTests, is_version, paths_of
from .own_modules import ChosenFunction, Import, imports_of, named_in
from .strings import StringReader
from .syntax import (
    ALL_CAUGHT,
    ENDS,
    MAX_ALTERNATIVES,
    Function,
    Names,
    Text,
    chain,
    defined_in,
    expressions,
    is_self,
    keys_of,
    kinds_caught,
    leaves_names_undefined,
    makes_modules,
    merged,
    name_of,
    override,
    raises,
)
from .use import Place, Use, UsedCall

MAX_WORK = 5_000_000
"""Limit of the uses in one file, the names that are copied for its branches, and the nodes visited
for its handlers: products of parts."""

_WORK_OF_USE = 20


class TooMuchWork(Exception):
    """Reading a file would take more than ``MAX_WORK``."""


@dataclasses.dataclass(frozen=True)
class _Module:
    """What is being read: a module, or a cell of a notebook.

    ``size``: its nodes. ``fakes``: it makes modules, which names in its strings may mean.
    """

    tree: ast.Module
    cell: int
    size: int
    fakes: bool


@dataclasses.dataclass(frozen=True)
class _Scope:
    """Where code stands. Statements bind names in the dicts; code of its own scope has copies.

    ``names``: what names mean; ``keys``: the keys of dicts in names, with their lines and the
    releases for which they are set; ``own``: the attributes of ``self``, and itself as "".
    ``live``: releases for which the code runs; ``caught``: failures that are handled; ``probed``:
    names for which a test asked; ``instead_of``: see ``Use``. ``dry``: only bindings are of
    interest, not uses.
    """

    module: _Module
    names: Names
    keys: dict[str, dict[str, tuple[int, Releases]]]
    live: Releases
    own: Names = dataclasses.field(default_factory=dict)
    caught: frozenset[str] = frozenset()
    probed: frozenset[str] = frozenset()
    instead_of: tuple[Use, ...] = ()
    dry: bool = False


class PythonReader:
    """Reads the modules of one file: a module, or the cells of a notebook, which share their names."""

    def __init__(self, file: str, tests: VersionTests, strings: StringReader) -> None:
        self._file, self._strings, self._tests = file, strings, tests
        self._names: Names = {}
        self._keys: dict[str, dict[str, tuple[int, Releases]]] = {}
        self._uses: list[Use] = []
        self.functions: dict[str, ChosenFunction] = {}
        """Functions of the module, with the releases for which it mentions them."""
        self.imports: list[Import] = []
        """Imports of other modules than vLLM's."""
        self.work = 0
        """Work that was done so far, in the unit of ``MAX_WORK``."""

    def read(self, tree: ast.Module, cell: int = 0) -> list[Use]:
        """Return the uses in a parsed module.

        Raises ``RecursionError`` if it is nested too deeply to be read, ``TooMuchWork`` if that
        takes disproportionate time or memory.
        """
        self._uses = []
        self.functions = {
            node.name: ChosenFunction(node) for node in tree.body if isinstance(node, Function)
        }
        module = _Module(tree, cell, sum(1 for _ in ast.walk(tree)), makes_modules(tree))
        self._block(tree.body, _Scope(module, self._names, self._keys, self._tests.all))
        return self._uses

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise TooMuchWork

    # Statements

    def _block(self, body: Iterable[ast.stmt], scope: _Scope) -> None:
        """Read statements in their order.

        What follows a test that leaves the block runs only where the test was false.
        """
        for node in body:
            rest = self._statement(node, scope)
            if rest is not None:
                scope = dataclasses.replace(scope, live=scope.live & rest)
            if isinstance(node, ENDS):
                break

    def _statement(self, node: ast.stmt, scope: _Scope) -> Releases | None:
        """Read a statement; return for which releases the block goes on after it, None for all."""
        if isinstance(node, ast.If):
            return self._if(node, scope)
        if isinstance(node, ast.Assert):
            self._expression(node.test, scope)
            return self._tests.outcome(node.test, scope.names)[0]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, Function):
            self._function(node, scope)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            self._try(node, scope)
        else:
            for expression in expressions(node):
                self._expression(expression, scope)
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                self._assign(node, scope)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self._unbind(node.target, scope)
            if isinstance(node, ast.Match):  # only one case runs: one that returns ends no other
                for case in node.cases:
                    self._block(case.body, scope)
            else:
                self._block(inner_statements(node), scope)
        return None

    def _if(self, node: ast.If, scope: _Scope) -> Releases | None:
        if is_type_checking(node.test):
            self._block(node.body, dataclasses.replace(scope, caught=frozenset(ALL_CAUGHT)))
            self._block(node.orelse, scope)
            return None
        self._expression(node.test, scope)
        true, false = self._tests.outcome(node.test, scope.names)
        self._spend(2 * len(scope.names))
        probed = scope.probed | self._tests.probed(node.test)
        branches = [
            dataclasses.replace(
                scope, names=dict(scope.names), live=scope.live & releases, probed=probed
            )
            for releases in (true, false)
        ]
        for branch, body in zip(branches, (node.body, node.orelse), strict=True):
            self._block(body, branch)
        _rebind(scope, merged(branches[0].names, branches[1].names))
        leaves = isinstance(node.body[-1], ENDS) and false != self._tests.all
        return false if leaves else None

    def _try(self, node: ast.Try | ast.TryStar, scope: _Scope) -> None:
        handlers = [handler for handler in node.handlers if not raises(handler)]
        caught = {kind for handler in handlers for kind in kinds_caught(handler)}
        if caught and isinstance(node.handlers[0].body[0], ast.Pass):
            self._spend(scope.module.size)
        if caught & {"module", "name"} and leaves_names_undefined(node, scope.module.tree):
            caught -= {"module", "name"}
        first = len(self._uses)
        self._block(node.body, dataclasses.replace(scope, caught=scope.caught | caught))
        guarded = tuple(use for use in self._uses[first:] if use.guarded)[:MAX_ALTERNATIVES]
        self._spend((1 + len(node.handlers)) * len(scope.names))
        kept = self._tests.kept()
        for handler in node.handlers:
            instead_of = guarded if kinds_caught(handler) else scope.instead_of
            inner = dataclasses.replace(scope, names=dict(scope.names), instead_of=instead_of)
            self._block(handler.body, inner)
            self._tests.after_handler(kept, handler.body)
            _rebind(scope, merged(scope.names, inner.names))
        self._block([*node.orelse, *node.finalbody], scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> None:
        self.imports += imports_of(node, self._file, scope.live)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "vllm":
                    scope.names[alias.asname or "vllm"] = (alias.name if alias.asname else "vllm",)
                    self._use(self._named((alias.name,), node, scope), "module", scope)
                else:
                    scope.names.pop(alias.asname or alias.name.partition(".")[0], None)
            return
        module = node.module or ""
        ours = not node.level and module.partition(".")[0] == "vllm"
        for alias in node.names:
            if ours:
                path = f"{module}.{alias.name}" if alias.name != "*" else module
                self._imported(module, path, node, scope)
                scope.names[alias.asname or alias.name] = (path,)
            else:
                scope.names.pop(alias.asname or alias.name, None)

    def _imported(self, module: str, path: str, node: ast.ImportFrom, scope: _Scope) -> None:
        """Record an import of a name.

        Where only ``ModuleNotFoundError`` is caught, the module and the name in it are two uses.
        """
        use = self._named((path,), node, scope)
        if "module" in scope.caught and "name" not in scope.caught:
            self._use(self._named((module,), node, scope), "module", scope)
            use = dataclasses.replace(use, roots=(module,))
        self._use(use, "name", scope)

    def _class(self, node: ast.ClassDef, scope: _Scope) -> None:
        keywords = (word.value for word in node.keywords)
        for expression in (*node.bases, *keywords, *node.decorator_list):
            self._expression(expression, scope)
        bases = [path for base in node.bases for path in _resolve(base, scope)]
        own: Names = {"": tuple(f"{path}()" for path in bases)} if bases else {}
        if not scope.dry:  # first learn what the methods assign to their instance
            dry = dataclasses.replace(self._nested(scope), own=own, dry=True)
            self._block(node.body, dry)
        own |= {name: () for name in defined_in(node) if name not in own}
        self._block(node.body, dataclasses.replace(self._nested(scope), own=own))
        for method in node.body:
            if isinstance(method, Function) and bases and not method.name.startswith("__"):
                parameters = override(method)
                for base in bases:
                    place = self._place(method, scope)
                    use = Use("override", (base,), place, method.name, override=parameters)
                    self._use(use, "attribute", scope)
        scope.names.pop(node.name, None)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
        arguments = node.args
        for decorator in node.decorator_list:
            self._strings.define(decorator)
        defaults = (*arguments.defaults, *filter(None, arguments.kw_defaults))
        for expression in (*node.decorator_list, *defaults):
            self._expression(expression, scope)
        inner = dataclasses.replace(self._nested(scope), caught=frozenset())
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            _bind(argument.arg, _annotated(argument.annotation, scope), inner)
        self._block(node.body, inner)

    def _nested(self, scope: _Scope) -> _Scope:
        """Return the scope of a function or class in ``scope``: it sees the names, and binds its own."""
        self._spend(len(scope.names) + len(scope.keys))
        return dataclasses.replace(scope, names=dict(scope.names), keys=dict(scope.keys))

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: _Scope) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        paths = _resolve(node.value, scope) if node.value is not None else ()
        if not paths and isinstance(node, ast.AnnAssign):
            paths = _annotated(node.annotation, scope)
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        for target in targets:
            if isinstance(target, ast.Name):
                self._keep(target.id, node.value, scope)
                _bind(
                    target.id, (VERSION,) if is_version(node.value, scope.names) else paths, scope
                )
            elif isinstance(target, ast.Attribute) and is_self(target.value) and not is_none:
                known = scope.own.get(target.attr)
                scope.own[target.attr] = paths if known is None or set(known) <= set(paths) else ()
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                keys = scope.keys.get(target.value.id)
                if keys is not None and isinstance(target.slice, ast.Constant):
                    key = str(target.slice.value)
                    if key not in scope.probed:
                        _, earlier = keys.get(key, (0, frozenset()))
                        keys[key] = node.lineno, scope.live | earlier
            else:
                self._unbind(target, scope)

    def _keep(self, name: str, value: ast.expr | None, scope: _Scope) -> None:
        """Remember the keys of a dict, and the outcome of a test of the version, under the name."""
        scope.keys.pop(name, None)
        if value is not None and (keys := keys_of(value)) is not None:
            scope.keys[name] = {key: (line, scope.live) for key, line in keys.items()}
        self._tests.keep(name, value, scope.names)

    def _unbind(self, target: ast.expr, scope: _Scope) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                scope.names.pop(node.id, None)

    # Expressions

    def _expression(self, expression: ast.expr, scope: _Scope) -> None:
        inner: set[int] = set()
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in self.functions:
                self.functions[node.id].mention(node.lineno, scope.live)
            if isinstance(node, ast.Call) and name_of(node.func).endswith("getLogger"):
                inner |= {id(argument) for argument in node.args}
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                self._attribute(node, scope)
                inner |= {id(part) for part in chain(node)}
            elif isinstance(node, ast.Call):
                if getattr(node.func, "attr", "") in ("add_api_route", "add_route"):
                    self._strings.define(node)
                self._strings.define(node.func)  # a decorator that is called: app.get("/x")(f)
                self._call(node, scope)
            elif isinstance(node, Text) and not scope.dry and id(node) not in inner:
                uses = self._strings.uses_in(node, self._place(node, scope))
                self._record(
                    [use for use in uses if use.kind != "name" or not scope.module.fakes], scope
                )
                self.imports += named_in(text_of(node), scope.live)

    def _attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        if paths := _resolve(node, scope):
            root = next((part for part in reversed(chain(node)) if _resolve(part, scope)), node)
            use = self._named(paths, node, scope, _resolve(root, scope))
            self._use(use, "attribute" if root is not node else "name", scope)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        paths = _resolve(node.func, scope)
        if not paths:
            return
        keywords = {
            word.arg: (word.value.lineno, scope.live)
            for word in node.keywords
            if word.arg is not None
        }
        for word in node.keywords:
            if word.arg is None:
                keywords |= self._passed(word.value, scope)
        place = self._place(node, scope)
        for name, (line, where) in keywords.items():
            at = dataclasses.replace(place, line=line)
            use = Use("keyword", paths, at, name, live=scope.live & where)
            self._use(use, "argument", scope)
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        count = sum(not isinstance(argument, ast.Starred) for argument in node.args)
        more = any(word.arg is None for word in node.keywords)
        call = UsedCall(count, tuple(keywords), starred, more)
        self._use(Use("call", paths, place, call=call), "argument", scope)

    def _passed(self, node: ast.expr, scope: _Scope) -> dict[str, tuple[int, Releases]]:
        """Return the keywords that ``**node`` passes, with their lines and the releases for which
        they are set."""
        if isinstance(node, ast.Name):
            passed = scope.keys.get(node.id, {})
        else:
            passed = {key: (line, scope.live) for key, line in (keys_of(node) or {}).items()}
        self._spend(len(passed))
        return passed

    # Uses

    def _use(self, use: Use, fails_as: str, scope: _Scope) -> None:
        """Record a use of vLLM, with the conditions of its scope. ``fails_as``: the kind of failure
        (``syntax.ALL_CAUGHT``) where a release does not have it."""
        self._spend(_WORK_OF_USE)
        last = use.detail or use.targets[0].rpartition(".")[2]
        guarded = (
            fails_as in scope.caught
            or last in scope.probed
            or (use.kind == "name" and not scope.probed.isdisjoint(use.targets))
        )
        self._record(
            [dataclasses.replace(use, instead_of=scope.instead_of, guarded=guarded)], scope
        )

    def _record(self, uses: Iterable[Use], scope: _Scope) -> None:
        for use in uses if not scope.dry else ():
            live = scope.live if use.live is None else use.live
            restricted = live if live != self._tests.all else None
            self._uses.append(dataclasses.replace(use, live=restricted))

    def _named(
        self, paths: tuple[str, ...], node: ast.AST, scope: _Scope, roots: tuple[str, ...] = ()
    ) -> Use:
        return Use("name", paths, self._place(node, scope), roots=roots)

    def _place(self, node: ast.AST, scope: _Scope) -> Place:
        return Place(self._file, getattr(node, "lineno", 1), scope.module.cell)


def _rebind(scope: _Scope, names: Names) -> None:
    """Let the names of a scope mean what they mean after its branches."""
    scope.names.clear()
    scope.names.update(names)


def _bind(name: str, paths: tuple[str, ...], scope: _Scope) -> None:
    if paths:
        scope.names[name] = paths
    else:
        scope.names.pop(name, None)


def _annotated(annotation: ast.expr | None, scope: _Scope) -> tuple[str, ...]:
    """Return an instance of the class of vLLM in an annotation."""
    if annotation is None:
        return ()
    if isinstance(annotation, ast.Subscript) and name_of(annotation.value) == "Optional":
        return _annotated(annotation.slice, scope)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant):
        return _annotated(annotation.left, scope)
    paths = scope.names.get(text_of(annotation), ()) or _resolve(annotation, scope)
    return tuple(f"{path}()" for path in paths)


def _resolve(node: ast.expr, scope: _Scope) -> tuple[str, ...]:
    """Return the paths that an expression means; none if it is nothing of vLLM."""
    if is_self(node):
        return scope.own.get("", ())
    if isinstance(node, ast.Attribute) and is_self(node.value) and node.attr in scope.own:
        return scope.own[node.attr]
    if isinstance(node, ast.Call):
        return tuple(f"{path}()" for path in _resolve(node.func, scope) if len(path) < MAX_PATH)
    if isinstance(node, ast.Await):
        return _resolve(node.value, scope)
    if isinstance(node, ast.Attribute):
        owners = _resolve(node.value, scope)
        return tuple(f"{path}.{node.attr}" for path in owners if len(path) < MAX_PATH)
    return paths_of(node, scope.names)
