"""Uses of vLLM in Python source: imports, attributes, calls, overridden methods, and strings.

The source is parsed, never run.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence

from ..api_history.modules import inner_statements, is_type_checking, text_of
from .guards import MAX_PATH, VERSION, Releases, VersionTests, is_version
from .model import Call, Place, Use
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
    keys_of,
    kinds_caught,
    leaves_names_undefined,
    makes_modules,
    merged,
    override,
    raises,
)

MAX_WORK = 5_000_000
"""Limit of the uses in one file, the names that are copied for its branches, and the nodes visited
for its handlers: products of parts."""

_WORK_OF_USE = 20


class TooMuchWork(Exception):
    """Reading a file would take more than ``MAX_WORK``."""


@dataclasses.dataclass(frozen=True)
class _Context:
    """Under which conditions code runs: see ``Use``.

    ``caught``: which failures are handled; ``probed``: for which names a test asked.
    """

    live: Releases
    caught: frozenset[str] = frozenset()
    probed: frozenset[str] = frozenset()
    instead_of: tuple[Use, ...] = ()


class PythonReader:
    """Reads the modules of one file: a module, or the cells of a notebook, which share their names."""

    def __init__(self, file: str, tests: VersionTests, strings: StringReader) -> None:
        self._file, self._cell, self._strings = file, 0, strings
        self._tests = tests
        self._names: Names = {}
        self._keys: dict[str, dict[str, tuple[int, Releases]]] = {}
        self._own: Names = {}
        self._context = _Context(self._tests.all)
        self._dry = False
        self._uses: list[Use] = []
        self._tree, self._size, self._fakes = ast.Module([], []), 0, False
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
        self._cell, self._uses, self._tree = cell, [], tree
        self._size = sum(1 for _ in ast.walk(tree))
        self._fakes = makes_modules(tree)
        self.functions = {
            node.name: ChosenFunction(node) for node in tree.body if isinstance(node, Function)
        }
        self._block(tree.body)
        return self._uses

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise TooMuchWork

    # Statements

    def _block(self, body: Sequence[ast.stmt]) -> None:
        """Read statements in their order.

        What follows a test that leaves the block runs only where the test was false.
        """
        before = self._context
        for node in body:
            rest = self._statement(node)
            if rest is not None:
                self._context = dataclasses.replace(self._context, live=self._context.live & rest)
            if isinstance(node, ENDS):
                break
        self._context = before

    def _statement(self, node: ast.stmt) -> Releases | None:
        """Read a statement; return for which releases the block goes on after it, None for all."""
        if isinstance(node, ast.If):
            return self._if(node)
        if isinstance(node, ast.Assert):
            self._expression(node.test)
            return self._tests.outcome(node.test, self._names)[0]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, Function):
            self._function(node)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            self._try(node)
        else:
            for expression in expressions(node):
                self._expression(expression)
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                self._assign(node)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self._unbind(node.target)
            self._block(list(inner_statements(node)))
        return None

    def _if(self, node: ast.If) -> Releases | None:
        if is_type_checking(node.test):
            self._within(
                dataclasses.replace(self._context, caught=frozenset(ALL_CAUGHT)), node.body
            )
            self._block(node.orelse)
            return None
        self._expression(node.test)
        true, false = self._tests.outcome(node.test, self._names)
        self._spend(2 * len(self._names))
        context, before = self._context, dict(self._names)
        probed = context.probed | self._tests.probed(node.test)
        self._within(
            dataclasses.replace(context, live=context.live & true, probed=probed), node.body
        )
        after_body, self._names = self._names, before
        self._within(
            dataclasses.replace(context, live=context.live & false, probed=probed), node.orelse
        )
        self._names = merged(after_body, self._names)
        return (
            false
            if node.body and isinstance(node.body[-1], ENDS) and false != self._tests.all
            else None
        )

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        caught = {
            kind
            for handler in node.handlers
            if not raises(handler)
            for kind in kinds_caught(handler)
        }
        if caught and isinstance(node.handlers[0].body[0], ast.Pass):
            self._spend(self._size)
        if caught & {"module", "name"} and leaves_names_undefined(node, self._tree):
            caught -= {"module", "name"}
        first = len(self._uses)
        context = self._context
        self._within(dataclasses.replace(context, caught=context.caught | caught), node.body)
        guarded = tuple(use for use in self._uses[first:] if use.guarded)[:MAX_ALTERNATIVES]
        self._spend((1 + len(node.handlers)) * len(self._names))
        after_body, kept = dict(self._names), self._tests.kept()
        for handler in node.handlers:
            instead_of = guarded if kinds_caught(handler) else context.instead_of
            self._within(dataclasses.replace(context, instead_of=instead_of), handler.body)
            self._tests.after_handler(kept, handler.body)
            after_body = merged(after_body, self._names)
            self._names = dict(after_body)
        self._block([*node.orelse, *node.finalbody])

    def _within(self, context: _Context, body: Sequence[ast.stmt]) -> None:
        before, self._context = self._context, context
        self._block(body)
        self._context = before

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.imports += imports_of(node, self._file, self._context.live)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "vllm":
                    self._names[alias.asname or "vllm"] = (alias.name if alias.asname else "vllm",)
                    self._use("name", (alias.name,), node, "module")
                else:
                    self._names.pop(alias.asname or alias.name.partition(".")[0], None)
            return
        ours = not node.level and (node.module or "").partition(".")[0] == "vllm"
        for alias in node.names:
            if ours:
                path = f"{node.module}.{alias.name}" if alias.name != "*" else str(node.module)
                self._imported(str(node.module), path, node)
                self._names[alias.asname or alias.name] = (path,)
            else:
                self._names.pop(alias.asname or alias.name, None)

    def _imported(self, module: str, path: str, node: ast.ImportFrom) -> None:
        """Record an import of a name.

        Where only ``ModuleNotFoundError`` is caught, the module and the name in it are two uses.
        """
        if "module" in self._context.caught and "name" not in self._context.caught:
            self._use("name", (module,), node, "module")
            self._use("name", (path,), node, "name", roots=(module,))
        else:
            self._use("name", (path,), node, "name")

    def _class(self, node: ast.ClassDef) -> None:
        for expression in (
            *node.bases,
            *(word.value for word in node.keywords),
            *node.decorator_list,
        ):
            self._expression(expression)
        bases = [path for base in node.bases for path in self._resolve(base)]
        outer = (self._own, self._dry)
        defined = defined_in(node)
        self._own = {"": tuple(f"{path}()" for path in bases)} if bases else {}
        if not self._dry:  # first learn what the methods assign to their instance
            self._dry = True
            self._scope(node.body)
            self._dry = False
        self._own |= {name: () for name in defined if name not in self._own}
        self._scope(node.body)
        for method in node.body:
            if isinstance(method, Function) and bases and not method.name.startswith("__"):
                for base in bases:
                    self._use(
                        "override",
                        (base,),
                        method,
                        "attribute",
                        detail=method.name,
                        override=override(method),
                    )
        self._own, self._dry = outer
        self._names.pop(node.name, None)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        for decorator in node.decorator_list:
            self._strings.define(decorator)
        for expression in (
            *node.decorator_list,
            *arguments.defaults,
            *filter(None, arguments.kw_defaults),
        ):
            self._expression(expression)
        self._spend(len(self._names))
        names, self._names = self._names, dict(self._names)
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._bind(argument.arg, self._annotated(argument.annotation))
        context = self._context
        self._context = dataclasses.replace(context, caught=frozenset())
        self._scope(node.body)
        self._context, self._names = context, names

    def _scope(self, body: Sequence[ast.stmt]) -> None:
        self._spend(len(self._names) + len(self._keys))
        names, keys = dict(self._names), dict(self._keys)
        self._block(body)
        self._names, self._keys = names, keys

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        paths = self._resolve(node.value) if node.value is not None else ()
        if not paths and isinstance(node, ast.AnnAssign):
            paths = self._annotated(node.annotation)
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        for target in targets:
            if isinstance(target, ast.Name):
                self._keep(target.id, node.value)
                self._bind(target.id, (VERSION,) if is_version(node.value, self._names) else paths)
            elif (
                isinstance(target, ast.Attribute)
                and getattr(target.value, "id", "") == "self"
                and not is_none
            ):
                known = self._own.get(target.attr)
                self._own[target.attr] = paths if known is None or set(known) <= set(paths) else ()
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                if target.value.id in self._keys and isinstance(target.slice, ast.Constant):
                    key = str(target.slice.value)
                    if key not in self._context.probed:
                        _, earlier = self._keys[target.value.id].get(key, (0, frozenset()))
                        self._keys[target.value.id][key] = (
                            node.lineno,
                            self._context.live | earlier,
                        )
            else:
                self._unbind(target)

    def _keep(self, name: str, value: ast.expr | None) -> None:
        """Remember the keys of a dict, and the outcome of a test of the version, under the name."""
        self._keys.pop(name, None)
        if value is not None and (keys := keys_of(value)) is not None:
            self._keys[name] = {key: (line, self._context.live) for key, line in keys.items()}
        self._tests.keep(name, value, self._names)

    def _bind(self, name: str, paths: tuple[str, ...]) -> None:
        if paths:
            self._names[name] = paths
        else:
            self._names.pop(name, None)

    def _unbind(self, target: ast.expr) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._names.pop(node.id, None)

    def _annotated(self, annotation: ast.expr | None) -> tuple[str, ...]:
        """Return an instance of the class of vLLM in an annotation."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            paths = self._names.get(annotation.value, ())
        elif (
            isinstance(annotation, ast.Subscript)
            and getattr(annotation.value, "id", "") == "Optional"
        ):
            return self._annotated(annotation.slice)
        elif isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant):
            return self._annotated(annotation.left)
        else:
            paths = self._resolve(annotation) if annotation is not None else ()
        return tuple(f"{path}()" for path in paths)

    # Expressions

    def _expression(self, expression: ast.expr) -> None:
        inner: set[int] = set()
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in self.functions:
                self.functions[node.id].mention(node.lineno, self._context.live)
            if isinstance(node, ast.Call) and getattr(
                node.func, "attr", getattr(node.func, "id", "")
            ).endswith("getLogger"):
                inner |= {id(argument) for argument in node.args}
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                self._attribute(node)
                inner |= {id(part) for part in chain(node)}
            elif isinstance(node, ast.Call):
                if getattr(node.func, "attr", "") in ("add_api_route", "add_route"):
                    self._strings.define(node)
                self._call(node)
            elif isinstance(node, Text) and not self._dry and id(node) not in inner:
                uses = self._strings.uses_in(node, self._place(node))
                self._record([use for use in uses if use.kind != "name" or not self._fakes])
                self.imports += named_in(text_of(node), self._context.live)

    def _attribute(self, node: ast.Attribute) -> None:
        if paths := self._resolve(node):
            root = next((part for part in reversed(chain(node)) if self._resolve(part)), node)
            kind = "attribute" if root is not node else "name"
            self._use("name", paths, node, kind, roots=self._resolve(root))

    def _call(self, node: ast.Call) -> None:
        paths = self._resolve(node.func)
        if not paths:
            return
        live = self._context.live
        keywords = {
            word.arg: (word.value.lineno, live) for word in node.keywords if word.arg is not None
        }
        for word in node.keywords:
            if word.arg is None:
                keywords |= self._passed(word.value)
        for name, (line, where) in keywords.items():
            self._use("keyword", paths, node, "argument", detail=name, line=line, live=live & where)
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        count = sum(not isinstance(argument, ast.Starred) for argument in node.args)
        more = any(word.arg is None for word in node.keywords)
        self._use("call", paths, node, "argument", call=Call(count, tuple(keywords), starred, more))

    def _passed(self, node: ast.expr) -> dict[str, tuple[int, Releases]]:
        """Return the keywords that ``**node`` passes, with their lines and the releases for which
        they are set."""
        if isinstance(node, ast.Name):
            passed = self._keys.get(node.id, {})
        else:
            passed = {
                key: (line, self._context.live) for key, line in (keys_of(node) or {}).items()
            }
        self._spend(len(passed))
        return passed

    def _resolve(self, node: ast.expr) -> tuple[str, ...]:
        """Return the paths that an expression means; none if it is nothing of vLLM."""
        if isinstance(node, ast.Name):
            return (
                self._own.get("", ())
                if node.id == "self"
                else tuple(p for p in self._names.get(node.id, ()) if p[0] != "@")
            )
        if isinstance(node, ast.Attribute):
            if (
                isinstance(node.value, ast.Name)
                and node.value.id == "self"
                and node.attr in self._own
            ):
                return self._own[node.attr]
            return tuple(
                f"{path}.{node.attr}" for path in self._resolve(node.value) if len(path) < MAX_PATH
            )
        if isinstance(node, ast.Call):
            return tuple(f"{path}()" for path in self._resolve(node.func) if len(path) < MAX_PATH)
        return self._resolve(node.value) if isinstance(node, ast.Await) else ()

    # Uses

    def _use(
        self,
        kind: str,
        paths: tuple[str, ...],
        node: ast.stmt | ast.expr,
        fails_as: str,
        *,
        line: int = 0,
        live: Releases | None = None,
        **parts: object,
    ) -> None:
        self._spend(_WORK_OF_USE)
        context = self._context
        last = str(parts.get("detail") or paths[0].rpartition(".")[2])
        guarded = (
            fails_as in context.caught
            or last in context.probed
            or (kind == "name" and bool(context.probed & {*paths}))
        )
        place = dataclasses.replace(self._place(node), line=line or node.lineno)
        live = context.live if live is None else live
        live = live if live != self._tests.all else None
        use = Use(kind, paths, place, live=live, instead_of=context.instead_of, guarded=guarded)
        self._record([dataclasses.replace(use, **parts)])  # type: ignore[arg-type]  # fields of Use

    def _record(self, uses: Sequence[Use]) -> None:
        if not self._dry:
            live = self._context.live if self._context.live != self._tests.all else None
            self._uses += [
                use if use.live is not None else dataclasses.replace(use, live=live) for use in uses
            ]

    def _place(self, node: ast.AST) -> Place:
        return Place(self._file, getattr(node, "lineno", 1), self._cell)
