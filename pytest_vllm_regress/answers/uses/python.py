"""Uses of vLLM in Python source, statement by statement: imports, branches, classes and functions.

The source is parsed, never run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..api_history.definitions import (
    Signature,
    inner_statements,
    is_type_checking,
    last_name,
    parameters_of,
    text_of,
    walk,
)
from .blocks import (
    ALL_CAUGHT,
    OF_IMPORT,
    Function,
    Try,
    always_raises,
    bound_by,
    constants_in,
    imported_names,
    kinds_caught,
    kinds_suppressed,
    leaves,
    leaves_names_undefined,
    may_only_lack_vllm,
    only_passes,
    returned,
)
from .expressions import COMMAND, ExpressionReader
from .guards import KeptTest, VersionTests
from .own_modules import Given, OwnModule, Replaced, imports_of
from .probes import asks_for_v1, of_engine
from .scope import (
    ARGUMENTS,
    DISTRIBUTION,
    MAX_ALTERNATIVES,
    PART,
    VERSION,
    VERSION_OF,
    Keys,
    Module,
    Names,
    Paths,
    Releases,
    Scope,
    is_distribution,
    is_version,
    key_of,
    merged,
    returns_version_of_argument,
)
from .statements import (
    NAMED_AS,
    below,
    declared_in,
    expressions_of,
    imported_by_name,
    imported_by_program,
    owners_of_functions,
    parses_arguments,
)
from .strings import StringReader, alternatives_in, starts_server
from .use import Use

MAX_WORK = 5_000_000
"""Limit of the uses in one file, the names that are copied for its branches, and the nodes visited
for its handlers: products of parts."""

Exported = tuple[Names, Mapping[str, KeptTest]]
NOTHING: Exported = ({}, {})
Exports = Callable[[ast.ImportFrom, str, str], Exported]
"""Returns what another module of the project has, for an import of a name from it in a file. If the
name is a module, what that has is called "name.x"."""


class TooMuchWork(Exception):
    """Reading a file would take more than ``MAX_WORK``."""


class PythonReader:
    """Reads the modules of one file: a module, or the cells of a notebook, which share their names."""

    def __init__(
        self,
        file: str,
        tests: VersionTests,
        strings: StringReader,
        exports: Exports,
        given: Given | None = None,
    ) -> None:
        """``given``: what the module's functions are called with, if that is known."""
        self._file, self._strings, self._tests = file, strings, tests
        self._exports = exports
        self._given = given or {}
        self._owners: dict[str, ast.expr] = {}
        self._names: Names = {}
        self._keys: dict[str, Keys] = {}
        self._fields: dict[str, Keys] = {}
        self._fails: Releases = frozenset()
        self._unloadable: Releases = frozenset()
        """Releases for which an import at the top fails, so that the rest is not reached."""
        self._methods: set[str] = set()
        """Names of functions and methods."""
        self._given_versions: set[tuple[str, int]] = set()
        self._marked: Releases = tests.all
        """Releases for which pytest runs the tests of the module."""
        self.own = OwnModule()
        self._expressions = ExpressionReader(self.own, tests, strings)
        self.work = 0
        """Work that was done so far, in the unit of ``MAX_WORK``."""

    @property
    def exported(self) -> Exported:
        """What the names of the module mean, and the tests that it keeps in names."""
        return self._names, self._tests.kept

    def read(self, tree: ast.Module, cell: int = 0, text: str = "") -> list[Use]:
        """Return the uses in a parsed module, whose source is ``text``.

        Raises ``RecursionError`` if it is nested too deeply to be read, ``TooMuchWork`` if that
        takes disproportionate time or memory.
        """
        module, everywhere = Module(self._file, tree, cell, text), self._tests.all
        self.own.define(tree, module.nodes)
        self._owners = owners_of_functions(module.nodes)
        self._strings.choose(self._file, alternatives_in(tree) if "vllm:" in text else ())
        for node in module.nodes:
            match node:
                case ast.FunctionDef(name, arguments):
                    self._methods.add(name)
                    self.own.passing |= {name} if arguments.kwarg else set()
                case ast.Call(ast.Name(name), arguments) if name in self.own.functions:
                    given = enumerate(arguments)
                    self._given_versions |= {(name, n) for n, a in given if is_version(a, {})}
        scope = Scope(
            module,
            self._names,
            self._keys,
            everywhere,
            self._spend,
            self._fields,
            certain=everywhere,
        )
        scope.names.update(imported_by_program(module))
        self._block(tree.body, scope)
        return module.uses

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise TooMuchWork

    def _block(self, body: Iterable[ast.stmt], scope: Scope) -> Releases:
        """Read statements in their order. Return for which releases the end of the block is reached.

        What follows a test that leaves the block runs only where the test was false.
        """
        for node in body:
            scope = scope.only_for(self._statement(node, scope))
            if leaves(node):
                return frozenset()
            if isinstance(node, ast.If) and any(
                leaves(b[-1]) for b in (node.body, node.orelse) if b
            ):
                scope = scope.doubting(self._tests.doubt(node.test, scope.names))
        return scope.live

    def _statement(self, node: ast.stmt, scope: Scope) -> Releases:
        """Read a statement; return for which releases the block goes on after it."""
        match node:
            case ast.If():
                return self._if(node, scope)
            case ast.Assert(test):
                self._expressions.read(test, scope)
                return self._tests.outcome(test, scope.names)[0]
            case ast.Import() | ast.ImportFrom():
                return self._import(node, scope)
            case (
                ast.Expr(ast.Call(function) as call) | ast.Assign(value=ast.Call(function) as call)
            ) if last_name(function) == "importorskip" and any(
                text_of(argument).partition(".")[0] == "vllm" for argument in call.args
            ):
                return self._import_or_skip(node, call, scope)
            case ast.ClassDef():
                self._class(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.Try() | ast.TryStar():
                return self._try(node, scope)
            case ast.With() | ast.AsyncWith() if caught := kinds_suppressed(node):
                self._block(
                    node.body, replace(scope.maybe(), caught=scope.caught | caught, loses=True)
                )
            case _:
                self._simple(node, scope)
        return scope.live

    def _simple(self, node: ast.stmt, scope: Scope) -> None:
        speaks = isinstance(node, ast.Raise)
        for expression in expressions_of(node):
            if not (scope.within and expression is getattr(node, "annotation", None)):
                self._expressions.read(expression, replace(scope, speaks=True) if speaks else scope)
        blocks: list[Iterable[ast.stmt]] = [inner_statements(node)]
        match node:
            case ast.Assign() | ast.AnnAssign():
                self._assign(node, scope)
            case ast.AugAssign(ast.Name(name), ast.Add(), value):
                self._expressions.add_options(name, value, scope)
            case ast.For() | ast.AsyncFor() | ast.While():
                if not isinstance(node, ast.While):
                    scope.unbind(node.target)
                blocks = [node.body, node.orelse]  # "else" runs where no "break" ends the body
            case ast.Match(_, cases):  # only one case runs: one that returns ends no other
                blocks = [case.body for case in cases]
            case ast.Delete(targets):
                for target in targets:
                    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                        scope.drop_key(target.value.id, target.slice)
            case ast.Return(value):
                scope.returns.append((value, scope.live))
            case ast.Raise(error) if (
                scope.tested
                and "Skip" not in last_name(getattr(error, "func", error))
                and (live := (scope.live & scope.certain) - self._unloadable)
            ):
                use = Use("version", ("vllm",), scope.place(node), live=live)
                self._expressions.use(use, "module", scope)
        inner = scope if isinstance(node, ast.With | ast.AsyncWith) else scope.maybe()
        for block in blocks:
            self._block(block, inner)

    def _if(self, node: ast.If, scope: Scope) -> Releases:
        if is_type_checking(node.test):
            self._block(node.body, replace(scope, caught=ALL_CAUGHT))
            self._block(node.orelse, scope)
            return scope.live
        self._expressions.read(node.test, scope)
        true, false = outcome = self._tests.outcome(node.test, scope.names)
        is_v1 = asks_for_v1(node.test, scope.names)
        self._spend(2 * len(scope.names))
        probed = scope.probed | self._tests.probed(node.test)
        branches, ends = [], frozenset[int]()
        doubted = scope.doubting(self._tests.doubt(node.test, scope.names))
        tested = scope.tested or not self._tests.is_open(outcome)
        for body, releases, others in ((node.body, true, false), (node.orelse, false, true)):
            names = dict(scope.names)
            if is_v1 is not None:
                names = of_engine(names, v1=is_v1 == (body is node.body))
            branches.append(names)
            certain = scope.certain & (releases - others)
            branch = replace(doubted, names=names, probed=probed, certain=certain, tested=tested)
            ends |= self._block(body, branch.only_for(releases))
        scope.names.clear()
        scope.names.update(merged(*branches))
        return ends

    def _try(self, node: Try, scope: Scope) -> Releases:
        caught: frozenset[str] = frozenset()
        for handler in node.handlers:
            if not always_raises(handler.body):  # which only passes the failure on
                caught |= kinds_caught(handler)
        if caught and isinstance(node.handlers[0].body[0], ast.Pass):
            self._spend(len(scope.module.nodes))
        loses = only_passes(node)
        if caught & OF_IMPORT and loses and leaves_names_undefined(node, scope.module.name_counts):
            caught -= OF_IMPORT
        first = len(scope.module.uses)
        certain = frozenset() if node.handlers else scope.certain
        fails_before, self._fails = self._fails, frozenset()
        constants = dict(self._tests.constants)
        inner = replace(scope, caught=scope.caught | caught, certain=certain, loses=loses)
        works = self._block(node.body, inner)
        lacks, self._fails = self._fails & scope.live, fails_before
        guarded = tuple(use for use in scope.module.uses[first:] if use.guarded)[:MAX_ALTERNATIVES]
        self._spend((1 + len(node.handlers)) * len(scope.names))
        kept = dict(self._tests.kept)
        fails = ends = frozenset[int]()
        for handler in node.handlers:
            kinds = kinds_caught(handler)
            self._spend(len(node.body))
            only_lacks = all(may_only_lack_vllm(part, kinds) for part in node.body)
            enters = lacks if only_lacks else scope.live  # something else may fail, too
            fails |= enters
            inner = replace(
                scope.maybe(),
                names=dict(scope.names),
                instead_of=guarded if kinds else scope.instead_of,
                live=enters,
            )
            ends |= self._block(handler.body, inner)
            is_of_import = bool(kinds) and kinds <= OF_IMPORT
            self._tests.after_handler(kept, handler.body, lacks if is_of_import else scope.live)
            scope.names.update(merged(scope.names, inner.names))
        # "else" runs only where the imports above it have worked.
        imported = imported_names(node.body)
        probed = scope.probed | imported if caught else scope.probed
        reached = works or scope.live  # a body that always returns has no "else"
        works = self._block(node.orelse, replace(scope, probed=probed, live=reached)) & works
        self._block(node.finalbody, scope)
        if caught & OF_IMPORT:
            bound = constants_in((*node.body, *node.orelse)) | dict.fromkeys(imported, True)
            handled = [entry for handler in node.handlers for entry in handler.body]
            # A name that a handler imports, too, is another thing of vLLM there.
            only_here = imported - imported_names(handled)
            others = constants_in(handled)
            self._tests.keep_attempt((bound, others), constants, only_here, reached, fails)
        return works | ends

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> Releases:
        """Read an import; return for which releases it works, if it is handled otherwise."""
        rest = scope.live
        self.own.imports += imports_of(node, scope.module.file, scope.live, scope.perhaps)
        for alias in node.names:
            if isinstance(node, ast.Import):
                module = path = alias.name
            else:
                module = "" if node.level else node.module or ""
                path = f"{module}.{alias.name}" if alias.name != "*" else module
            name = bound_by(alias)
            if module.partition(".")[0] != "vllm":
                scope.names.pop(name, None)
                if isinstance(node, ast.Import):
                    self._tests.foreign.add(name)
                if isinstance(node, ast.ImportFrom):
                    self._take(node, alias.name, name, scope)
                continue
            use = Use("name", (path,), scope.place(node))
            exists, lacks = self._tests.exists(path)
            if scope.caught & OF_IMPORT:
                rest &= exists
                self._fails |= lacks & scope.live
            elif scope.certain:
                self._unloadable |= lacks - exists
            self._tests.kept.pop(name, None)
            if isinstance(node, ast.Import):
                scope.names[name] = (path if alias.asname else name,)
                self._expressions.use(use, "module", scope)
                continue
            if "module" in scope.caught and "name" not in scope.caught:
                # Only ModuleNotFoundError is caught: the module and the name in it are two uses.
                self._expressions.use(replace(use, targets=(module,)), "module", scope)
                use = replace(use, roots=(module,))
            self._expressions.use(use, "name", scope)
            if alias.name == "*":
                self._take_all(module, scope)
            else:
                scope.names[name] = (path,)
        return rest

    def _take_all(self, module: str, scope: Scope) -> None:
        """Bind the names that nothing but ``from vllm.x import *`` can bind, if any release has
        them there."""
        names = scope.module.undefined
        if scope.module.name_counts[0]["*"] > 1:
            return  # another module may have them
        self._spend(len(names))
        for name in names:
            path = f"{module}.{name}"
            if self._tests.exists(path)[1] != self._tests.all:
                scope.names[name] = (path,)
                scope.module.starred.add(name)

    def _import_or_skip(
        self, node: ast.Expr | ast.Assign, call: ast.Call, scope: Scope
    ) -> Releases:
        """Read ``pytest.importorskip``; return for which releases the test goes on."""
        path = text_of(call.args[0])
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                scope.names[target.id] = (path,)
        minimum = next((word.value for word in call.keywords if word.arg == "minversion"), None)
        return self._tests.exists(path)[0] & self._tests.since(minimum)

    def _take(self, node: ast.ImportFrom, exported: str, name: str, scope: Scope) -> None:
        """Take over what is known of a name that another module of the project has: something of
        vLLM, its version, a function that returns one, or a test."""
        names, kept = self._exports(node, scope.module.file, exported)
        for suffix in ("", "()"):
            self._tests.kept.pop(name + suffix, None)
            if test := kept.get(exported + suffix):
                self._tests.kept[name + suffix] = test
            if paths := names.get(exported + suffix):
                scope.names[name + suffix] = paths
        start = f"{exported}."
        self._tests.kept |= {f"{name}.{key}": test for key, test in below(start, kept).items()}
        scope.names.update({f"{name}.{key}": paths for key, paths in below(start, names).items()})

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        scope = self._decorated(node, scope)
        keywords = (word.value for word in node.keywords)
        for expression in (*node.bases, *keywords, *node.decorator_list):
            self._expressions.read(expression, scope)
        bases: list[str] = []
        named_bases = [b.value if isinstance(b, ast.Subscript) else b for b in node.bases]
        for named in named_bases:
            if paths := scope.resolve(named):
                bases += paths
                exist = (self._tests.exists(path)[0] for path in paths)
                scope = scope.only_for(frozenset().union(*exist))
        self.own.passing |= {node.name} if bases else set()
        own: Names = {".": tuple(f"{path}()" for path in bases)} if bases else {}
        if bases and scope.resolve(named_bases[0]):  # of others it is not known what comes first
            own["super()"] = own["."]
        nested = scope.nested(own_keys={}, within=(*scope.within, node), certain=scope.certain)
        for name in [name for name in nested.names if name[:1] == "." or name == "super()"]:
            del nested.names[name]  # of the class around this one
        if not scope.dry:  # first learn what the methods assign to their instance
            for key in [key for key in self._tests.kept if key[:1] == "."]:
                del self._tests.kept[key]
            self._block(node.body, replace(nested, names=dict(nested.names), own=own, dry=True))
        scope.fields[node.name] = {
            entry.target.id: (entry.lineno, scope.live)
            for entry in node.body
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
        }
        for name, annotation in declared_in(node):
            own.setdefault(f".{name}", scope.annotated(annotation))
        for named in named_bases:
            for name, paths in below(f"{key_of(named)}.", scope.names).items():
                own.setdefault(f".{name}", paths)
        self._block(node.body, replace(nested, own=own))
        self._add_members(node, bases, scope)
        self._spend(len(own))
        assigned = {f"{node.name}{key}": paths for key, paths in own.items() if key[1:] and paths}
        scope.names.update({key: p for key, p in assigned.items() if key[len(node.name)] == "."})
        self._overrides(node, bases, scope)
        scope.names.pop(node.name, None)

    def _add_members(self, node: ast.ClassDef, bases: Sequence[str], scope: Scope) -> None:
        """Note what a class adds to those of vLLM that it inherits from, or that it names as in
        ``class P(Patch[EngineArgs])``: an object of these may have it, too."""
        patched = [b.slice for b in node.bases if isinstance(b, ast.Subscript)]
        owners = [*bases, *(path for owner in patched for path in scope.resolve(owner))]
        line = node.end_lineno or node.lineno
        self._spend(len(owners) * len(node.body))
        self.own.replaced += [
            Replaced(f"{owner}.{name}", scope.module.file, line, scope.live)
            for owner in owners
            for name, _ in declared_in(node)
            if not (scope.dry or name.startswith("__"))
        ]

    def _overrides(self, node: ast.ClassDef, bases: Sequence[str], scope: Scope) -> None:
        """Record the methods of a class that override those of its bases."""
        defined = {method.name: method for method in node.body if isinstance(method, Function)}
        # One that only raises an exception is not meant to be called.
        methods = [method for method in defined.values() if not always_raises(method.body)]
        is_mixed_in = all(path.rpartition(".")[2].endswith("Mixin") for path in bases)
        siblings = tuple(defined)
        for method in methods if not is_mixed_in else ():  # who mixes it in calls its methods
            # A private hook may be the former form of a public one that some class here has, too.
            is_former = method.name[:1] == "_" and method.name[1:] in self._methods
            if not (method.name.startswith("__") or is_former):
                place, signature = scope.place(method), Signature(parameters_of(method.args))
                if "staticmethod" not in map(last_name, method.decorator_list):
                    signature = signature.without_first()
                for base in bases:
                    use = Use(
                        "override",
                        (base,),
                        place,
                        method.name,
                        override=signature,
                        siblings=siblings,
                    )
                    self._expressions.use(use, "attribute", scope)

    def _function(self, node: Function, scope: Scope) -> None:
        arguments = node.args
        for decorator in node.decorator_list:
            self._strings.define_by(decorator, scope.module.file, decorates=True)
        scope = self._decorated(node, scope)
        defaults = (*arguments.defaults, *filter(None, arguments.kw_defaults))
        for expression in (*node.decorator_list, *defaults):
            self._expressions.read(expression, scope)
        # A plugin is a function of this name, which vLLM calls when it starts.
        certain = scope.certain if node.name == "register" else frozenset[int]()
        within = (*scope.within, node)
        inner = scope.nested(caught=frozenset(), within=within, returns=[], certain=certain)
        inner.names.update(scope.own)
        parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        for number, argument in enumerate(parameters):
            is_given = (node.name, number) in self._given_versions and not scope.within
            annotated = (VERSION,) if is_given else scope.annotated(argument.annotation)
            if last_name(argument.annotation) == "Namespace":
                annotated = (ARGUMENTS,)
            elif argument.annotation is None and not annotated:
                annotated = self._argument(node, number, argument.arg, scope)
            inner.bind("." if argument.arg == "self" and annotated else argument.arg, annotated)
            self._tests.kept.pop(argument.arg, None)
            inner.keep_fields(argument.arg, argument.annotation)
        ends = self._block(node.body, inner)
        self._remember(node, inner, scope, ends)

    def _argument(self, function: Function, number: int, name: str, scope: Scope) -> Paths:
        """Return what a parameter without an annotation is: by where the function is put, how the
        module calls it, or its name."""
        owner = self._owners.get(function.name)
        if number == 0 and owner and not isinstance(scope.around, ast.ClassDef):
            return tuple(f"{path}()" for path in scope.resolve(owner))
        at_top = not scope.within
        given = at_top and (
            self._given.get((function.name, number)) or self._given.get((function.name, name))
        )
        return given or NAMED_AS.get(name, ())

    def _decorated(self, node: Function | ast.ClassDef, scope: Scope) -> Scope:
        """Return the scope of a function or class that a decorator, or a mark of the module, leaves
        out of some releases."""
        if not scope.within:
            scope = scope.only_for(self._marked)
        for decorator in node.decorator_list:
            scope = scope.only_for(self._tests.decorated(decorator, scope.names))
        return scope

    def _remember(self, node: Function, inner: Scope, scope: Scope, ends: Releases) -> None:
        """Remember what a function returns: the version, the outcome of a test, or a dict."""
        name, values = f"{node.name}()", returned(node)
        keys: Keys = {}
        for value in values:
            keys |= inner.passed(value)
        if isinstance(scope.around, ast.ClassDef):
            if keys:
                scope.own_keys[node.name] = keys
            is_property = any("property" in last_name(d) for d in node.decorator_list)
            key = f".{node.name}" if is_property else f".{name}"
            self._tests.keep_function(key, node, inner.returns, ends, inner.names)
            return
        if keys:
            scope.keys[name] = keys
        scope.names.pop(node.name, None)
        scope.names.pop(name, None)
        self._tests.kept.pop(name, None)
        if returns_version_of_argument(node):
            scope.names[node.name] = (VERSION_OF,)
        elif values and any(is_version(value, inner.names) for value in values):
            scope.names[name] = (VERSION,)
        else:
            self._tests.keep_function(name, node, inner.returns, ends, inner.names)

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: Scope) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        paths = scope.resolve(node.value)
        if not paths and isinstance(node, ast.AnnAssign):
            paths = scope.annotated(node.annotation)
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        imported = imported_by_name(node.value)
        bound = paths = imported or paths
        if is_version(node.value, scope.names):
            bound = (VERSION,)
        elif is_distribution(node.value, scope.names):
            bound = (DISTRIBUTION,)
        elif starts_server(node.value):
            bound = (COMMAND,)
        elif parses_arguments(node.value):
            bound = (ARGUMENTS,)
        for target in targets:
            match target:
                case ast.Name(name):
                    scope.keep_keys(name, node.value)
                    self._tests.keep(name, node.value, scope.names)
                    if isinstance(scope.around, ast.ClassDef):
                        for key in (f".{name}", f"{scope.around.name}.{name}"):
                            self._tests.keep(key, node.value, scope.names)
                    scope.keep_fields(name, node.value)
                    if name == "pytestmark" and not scope.within:
                        marks = getattr(node.value, "elts", [node.value])
                        for mark in marks:
                            self._marked &= self._tests.decorated(mark, scope.names)
                    scope.bind(name, bound)
                case ast.Attribute(ast.Name("self"), name):
                    self._tests.keep(f".{name}", node.value, scope.names)
                    if keys := scope.passed(node.value):
                        scope.own_keys[name] = {**scope.own_keys.get(name, {}), **keys}
                    if is_none:
                        scope.own.setdefault(f".{name}", ())
                    else:
                        known = scope.own.get(f".{name}")
                        same = known is None or set(known) <= set(bound)
                        scope.own[f".{name}"] = scope.names[f".{name}"] = bound if same else ()
                case ast.Attribute():
                    self._expressions.replace(scope.resolve(target), node, scope)
                case ast.Subscript(ast.Attribute(_, "modules"), key):
                    self._expressions.replace([text_of(key)], node, scope, module=True)
                case ast.Subscript(ast.Name(name), ast.Constant(value)) if name in scope.keys:
                    if (key := str(value)) not in scope.probed:
                        _, earlier = scope.keys[name].get(key, (0, frozenset()))
                        scope.keys[name][key] = node.lineno, scope.live | earlier
                case ast.Tuple() | ast.List() | ast.Starred():
                    scope.unbind(target)
                    first = getattr(target, "elts", [None])[0]
                    if bound in (imported, (ARGUMENTS,)) and isinstance(first, ast.Name):
                        scope.bind(first.id, bound)  # LLM, exists = optional_import(...)
                    self._unpack(target, node.value, scope)

    def _unpack(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        """Follow ``major, minor = map(int, version.split(".")[:2])``."""
        parts = walk(value) if value else ()
        if any(isinstance(p, ast.expr) and is_version(p, scope.names) for p in parts):
            for number, name in enumerate(getattr(target, "elts", ())):
                if isinstance(name, ast.Name):
                    scope.names[name.id] = (f"{PART}{number}",)
