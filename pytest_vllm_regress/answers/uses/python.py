"""Uses of vLLM in Python source: imports, attributes, calls, overridden methods, and strings.

The source is parsed, never run.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..api_history.definitions import (
    Signature,
    children,
    inner_statements,
    is_type_checking,
    last_name,
    parameters_of,
    text_of,
    walk,
)
from .guards import (
    ASKS_FOR_MODULE,
    DISTRIBUTION,
    PART,
    VERSION,
    VERSION_OF,
    KeptTest,
    Names,
    Paths,
    Releases,
    VersionTests,
    asks_for_v1,
    is_distribution,
    is_version,
    of_engine,
    resolve,
    returned,
    returns_version_of_argument,
)
from .own_modules import ChosenFunction, Import, Replaced, imports_of, named_in
from .strings import NEAR, StringReader, Surroundings, alternatives_in, starts_server
from .use import Place, Use, UsedCall

ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
"""Statements that leave a block."""
MAX_ALTERNATIVES = 8
COMMAND = "@command"
"""What a name is bound to that holds the words of a command that starts the server."""
_FOR_PEOPLE = ("help", "description", "epilog", "usage", "title")
"""Keyword arguments that hold messages for users."""
_WRITES = re.compile(
    r"print|warn|warning|warning_once|info|debug|error|exception|critical|log|write"
)
_READS_VARIABLE = re.compile(
    r"(?i)(?:_*|\w*_)(?:get|read|pop|del|unset|remove|discard|has|is|lookup)(?:$|_|env|attr|item)|_*env(?:$|_)"
)
"""Names of functions that read or remove a variable of the environment, which a project may have
for itself, or which need not exist."""
_READ_FROM = ("envvar", "env_var", "env", "alias", "validation_alias")
"""Keyword arguments with the variable from which a setting is read."""
_COMPARES = re.compile(
    r"assert|startswith|endswith|removeprefix|removesuffix|replace$|fullmatch$|set_level|at_level|filterwarnings"
)
"""Names of functions that compare a string, or with the name of a logger or a module."""
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
    return _caught(types)


def kinds_suppressed(node: ast.With | ast.AsyncWith) -> frozenset[str]:
    """Return the kinds of failures that ``with suppress(ImportError)`` handles."""
    calls = (item.context_expr for item in node.items)
    types = (
        call.args
        for call in calls
        if isinstance(call, ast.Call) and last_name(call.func) == "suppress"
    )
    return _caught(itertools.chain(*types))


def _caught(types: Iterable[ast.expr]) -> frozenset[str]:
    return frozenset[str]().union(*(_CAUGHT.get(last_name(kind), ()) for kind in types))


def always_raises(body: Sequence[ast.stmt]) -> bool:
    """Return whether a block ends in an exception, or ends the program, on every way through it."""
    match body[-1]:
        case ast.Raise():
            return True
        case ast.Expr(ast.Call(function)):
            return last_name(function) in ("exit", "_exit")
        case ast.If(_, true, false):
            return bool(false) and always_raises(true) and always_raises(false)
        case ast.With(body=inner) | ast.AsyncWith(body=inner):
            return always_raises(inner)
        case ast.Try(inner, handlers, _, finalbody):
            handled = all(always_raises(handler.body) for handler in handlers)
            return (handled and always_raises(inner)) or (
                bool(finalbody) and always_raises(finalbody)
            )
    return False


def makes_module(node: ast.AST) -> bool:
    """Return whether a node makes a module, so that dotted names in strings of its file may mean
    that: a test with a fake vLLM."""
    return (isinstance(node, ast.Attribute) and node.attr in ("modules", "ModuleType")) or (
        isinstance(node, ast.Constant) and node.value == "sys.modules"
    )


def only_passes(node: ast.Try | ast.TryStar) -> bool:
    """Return whether all handlers only write a message."""
    handled = (statement for handler in node.handlers for statement in handler.body)
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and _says(statement.value))
        for statement in handled
    )


def _says(value: ast.expr) -> bool:
    """Return whether an expression is a docstring, ``...``, or a call that writes a message."""
    if isinstance(value, ast.Call):
        return _WRITES.fullmatch(last_name(value.func)) is not None
    return isinstance(value, ast.Constant)


def leaves(node: ast.stmt) -> bool:
    """Return whether a statement leaves its block."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(owner, "skip" | "fail" | "skipTest"))):
            return last_name(owner) in ("pytest", "self")
    return isinstance(node, ENDS) or (isinstance(node, ast.Expr) and always_raises([node]))


def constants_in(body: Iterable[ast.stmt]) -> dict[str, bool]:
    """Return the names that a block binds to a constant."""
    return {
        target.id: bool(node.value.value)
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def leaves_names_undefined(
    node: ast.Try | ast.TryStar, names: tuple[Counter[str], Counter[str]]
) -> bool:
    """Return whether the file needs one of the names elsewhere whose import may fail. ``names``: of
    the file, see ``names_of``."""
    bound, loaded = names
    inside = sum((names_of(part)[1] for part in (*node.body, *node.orelse)), Counter())
    return any(bound[name] == 1 and loaded[name] > inside[name] for name in _imported(node.body))


def _imported(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the names that the imports of a block bind."""
    imports = (entry for entry in body if isinstance(entry, (ast.Import, ast.ImportFrom)))
    return frozenset(_bound(alias) for statement in imports for alias in statement.names)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def names_of(tree: ast.AST) -> tuple[Counter[str], Counter[str]]:
    """Return how often each name is bound, and how often it is read."""
    bound, loaded = Counter[str](), Counter[str]()
    for node in walk(tree):
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


def merged(one: Names, other: Names) -> Names:
    """Return what names mean after one of two branches."""
    return {
        name: tuple(dict.fromkeys((*one.get(name, ()), *other.get(name, ()))))[:MAX_ALTERNATIVES]
        for name in {**one, **other}
    }


Keys = dict[str, tuple[int, Releases]]
"""Keys of a dict, with their lines and the releases for which they are set."""
MAX_WORK = 5_000_000
"""Limit of the uses in one file, the names that are copied for its branches, and the nodes visited
for its handlers: products of parts."""

_WORK_OF_USE = 20


Exported = tuple[Names, Mapping[str, KeptTest]]
NOTHING: Exported = ({}, {})
Exports = Callable[[ast.ImportFrom, str, str], Exported]
"""Returns what another module of the project has, for an import of a name from it in a file. If the
name is a module, what that has is called "name.x"."""


class TooMuchWork(Exception):
    """Reading a file would take more than ``MAX_WORK``."""


@dataclass(frozen=True)
class _Module:
    """What is being read: a module, or a cell of a notebook.

    ``size``: its nodes. ``fakes``: it makes modules, which names in its strings may mean.
    """

    tree: ast.Module
    cell: int
    size: int
    fakes: bool


@dataclass(frozen=True)
class _Scope:
    """Where code stands. Statements bind names in the dicts; code of its own scope has copies.

    ``names``: what names mean; ``keys``: the keys of dicts in names, and of those that functions
    return, as "f()"; ``own``: what methods learn of their instance, as in ``names``; ``own_keys``:
    the keys of dicts in these, and of those that methods return. ``within``: classes and functions
    around it.
    ``certain``: releases for which the module cannot be imported without running it; ``tested``: a
    test of the release decides that.
    ``live``: releases for which the code runs; ``caught``: failures that are handled; ``probed``:
    names for which a test asked; ``instead_of``: see ``Use``. ``returns``: what the function around
    it returns, with the releases. ``loses``: where a failure is handled, nothing comes in place of
    what failed. ``dry``: only bindings are of interest, not uses; ``speaks``:
    strings are for people.
    """

    module: _Module
    names: Names
    keys: dict[str, Keys]
    live: Releases
    own: Names = field(default_factory=dict)
    own_keys: dict[str, Keys] = field(default_factory=dict)
    within: tuple[ast.AST, ...] = ()
    certain: Releases = frozenset()
    tested: bool = False
    caught: frozenset[str] = frozenset()
    probed: frozenset[str] = frozenset()
    instead_of: tuple[Use, ...] = ()
    returns: list[tuple[ast.expr | None, Releases]] = field(default_factory=list)
    loses: bool = False
    dry: bool = False
    speaks: bool = False


class PythonReader:
    """Reads the modules of one file: a module, or the cells of a notebook, which share their names."""

    def __init__(
        self, file: str, tests: VersionTests, strings: StringReader, exports: Exports
    ) -> None:
        self._file, self._strings, self._tests = file, strings, tests
        self._exports = exports
        self._lines: Sequence[str] = ()
        self._names: Names = {}
        self._keys: dict[str, Keys] = {}
        self._uses: list[Use] = []
        self._names_in_module: tuple[Counter[str], Counter[str]] | None = None
        self.functions: dict[str, ChosenFunction] = {}
        """Functions of the module, with the releases for which it mentions them."""
        self.imports: list[Import] = []
        """Imports of other modules than vLLM's."""
        self.called: set[str] = set()
        """Attributes that the code takes from other objects than its own instance."""
        self._fails: Releases = frozenset()
        self._fields: dict[str, Keys] = {}
        self._unloadable: Releases = frozenset()
        """Releases for which an import at the top fails, so that the rest is not reached."""
        self.replaced: list[Replaced] = []
        self._methods: set[str] = set()
        """Names of functions and methods."""
        self.passing: set[str] = set()
        """Names of functions that take any keywords, and of classes that inherit from vLLM's."""
        self._given_versions: set[tuple[str, int]] = set()
        self._marked: Releases = tests.all
        """Releases for which pytest runs the tests of the module."""
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
        self._uses = []
        self._lines = text.lower().split("\n")
        self.functions = {
            node.name: ChosenFunction(node) for node in tree.body if isinstance(node, Function)
        }
        self.functions |= {
            f".{method.name}": ChosenFunction(method)
            for node in tree.body
            if isinstance(node, ast.ClassDef)
            for method in node.body
            if isinstance(method, Function) and re.match("_(?!_)", method.name)
        }
        self._strings.choose(self._file, alternatives_in(tree) if "vllm:" in text else ())
        size, fakes = 0, False
        for node in walk(tree):
            size += 1
            fakes = fakes or makes_module(node)
            match node:
                case ast.FunctionDef(name, arguments):
                    self._methods.add(name)
                    self.passing |= {name} if arguments.kwarg else set()
                case ast.Call(ast.Name(name), arguments) if name in self.functions:
                    given = enumerate(arguments)
                    self._given_versions |= {(name, n) for n, a in given if is_version(a, {})}
        module = _Module(tree, cell, size, fakes)
        self._names_in_module = None
        everywhere = self._tests.all
        self._block(
            tree.body, _Scope(module, self._names, self._keys, everywhere, certain=everywhere)
        )
        return self._uses

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > MAX_WORK:
            raise TooMuchWork

    # Statements

    def _block(self, body: Iterable[ast.stmt], scope: _Scope) -> Releases:
        """Read statements in their order. Return for which releases the end of the block is reached.

        What follows a test that leaves the block runs only where the test was false.
        """
        for node in body:
            rest = self._statement(node, scope)
            if rest is not None:
                scope = replace(scope, live=scope.live & rest)
            if leaves(node):
                return frozenset()
        return scope.live

    def _statement(self, node: ast.stmt, scope: _Scope) -> Releases | None:
        """Read a statement; return for which releases the block goes on after it, None for all."""
        match node:
            case ast.If():
                return self._if(node, scope)
            case ast.Assert(test):
                self._expression(test, scope)
                return self._tests.outcome(test, scope.names)[0]
            case ast.Import() | ast.ImportFrom():
                return self._import(node, scope)
            case (
                ast.Expr(ast.Call(function) as call) | ast.Assign(value=ast.Call(function) as call)
            ) if last_name(function) == "importorskip" and "vllm" in map(_package, call.args):
                return self._import_or_skip(node, call, scope)
            case ast.ClassDef():
                self._class(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.Try() | ast.TryStar():
                return self._try(node, scope)
            case ast.With() | ast.AsyncWith() if caught := kinds_suppressed(node):
                self._block(
                    node.body, replace(_maybe(scope), caught=scope.caught | caught, loses=True)
                )
            case _:
                self._simple(node, scope)
        return None

    def _simple(self, node: ast.stmt, scope: _Scope) -> None:
        is_raise = isinstance(node, ast.Raise)
        for expression in expressions(node):
            if not (scope.within and expression is getattr(node, "annotation", None)):
                self._expression(expression, replace(scope, speaks=True) if is_raise else scope)
        blocks: list[Iterable[ast.stmt]] = [inner_statements(node)]
        match node:
            case ast.Assign() | ast.AnnAssign():
                self._assign(node, scope)
            case ast.AugAssign(ast.Name(name), ast.Add(), value):
                self._add_options(name, value, scope)
            case ast.For(target, body=body, orelse=other) | ast.AsyncFor(
                target, body=body, orelse=other
            ):
                _unbind(target, scope)
                blocks = [body, other]  # "else" runs where no "break" ends the body
            case ast.While(_, body, other):
                blocks = [body, other]
            case ast.Match(_, cases):  # only one case runs: one that returns ends no other
                blocks = [case.body for case in cases]
            case ast.Delete(targets):
                for target in targets:
                    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                        self._drop_key(target.value.id, target.slice, scope)
            case ast.Return(value):
                scope.returns.append((value, scope.live))
            case ast.Raise(error) if (
                scope.tested
                and "Skip" not in last_name(getattr(error, "func", error))
                and (live := (scope.live & scope.certain) - self._unloadable)
            ):
                use = Use("version", ("vllm",), self._place(node, scope), live=live)
                self._use(use, "module", scope)
        is_with = isinstance(node, (ast.With, ast.AsyncWith))
        for block in blocks:
            self._block(block, scope if is_with else _maybe(scope))

    def _if(self, node: ast.If, scope: _Scope) -> Releases | None:
        if is_type_checking(node.test):
            self._block(node.body, replace(scope, caught=ALL_CAUGHT))
            self._block(node.orelse, scope)
            return None
        self._expression(node.test, scope)
        true, false = outcome = self._tests.outcome(node.test, scope.names)
        is_open = self._tests.is_open(outcome)
        is_v1 = asks_for_v1(node.test, scope.names)
        self._spend(2 * len(scope.names))
        probed = scope.probed | self._tests.probed(node.test)
        branches, ends = [], frozenset[int]()
        for body, releases, others in ((node.body, true, false), (node.orelse, false, true)):
            live = scope.live & releases
            names = dict(scope.names)
            if is_v1 is not None:
                names = of_engine(names, v1=is_v1 if body is node.body else not is_v1)
            branch = replace(
                scope,
                names=names,
                live=live,
                probed=probed,
                certain=scope.certain & (releases - others),
                tested=scope.tested or not is_open,
            )
            ends |= self._block(body, branch)
            branches.append(branch.names)
        scope.names.clear()
        scope.names.update(merged(*branches))
        return ends

    def _try(self, node: ast.Try | ast.TryStar, scope: _Scope) -> Releases:
        caught: frozenset[str] = frozenset()
        for handler in node.handlers:
            if not always_raises(handler.body):  # which only passes the failure on
                caught |= kinds_caught(handler)
        if caught and isinstance(node.handlers[0].body[0], ast.Pass):
            self._spend(scope.module.size)
        if caught & {"module", "name"} and only_passes(node):
            self._names_in_module = self._names_in_module or names_of(scope.module.tree)
            if leaves_names_undefined(node, self._names_in_module):
                caught -= {"module", "name"}
        first = len(self._uses)
        certain = frozenset() if node.handlers else scope.certain
        fails_before, self._fails = self._fails, frozenset()
        constants = dict(self._tests.constants)
        loses = only_passes(node)
        inner = replace(scope, caught=scope.caught | caught, certain=certain, loses=loses)
        works = self._block(node.body, inner)
        lacks, self._fails = self._fails & scope.live, fails_before
        fails = frozenset[int]()
        guarded = tuple(use for use in self._uses[first:] if use.guarded)[:MAX_ALTERNATIVES]
        self._spend((1 + len(node.handlers)) * len(scope.names))
        kept = dict(self._tests.kept)
        ends = frozenset[int]()
        for handler in node.handlers:
            kinds = kinds_caught(handler)
            self._spend(len(node.body))
            only_lacks = all(_may_only_lack_vllm(part, kinds) for part in node.body)
            enters = lacks if only_lacks else scope.live  # something else may fail, too
            fails |= enters
            instead_of = guarded if kinds else scope.instead_of
            inner = replace(
                scope,
                names=dict(scope.names),
                instead_of=instead_of,
                certain=frozenset(),
                live=enters,
            )
            ends |= self._block(handler.body, inner)
            self._tests.after_handler(kept, handler.body)
            scope.names.update(merged(scope.names, inner.names))
        # "else" runs only where the imports above it have worked.
        imported = scope.probed | _imported(node.body) if caught else scope.probed
        reached = works or scope.live  # a body that always returns has no "else"
        works = self._block(node.orelse, replace(scope, probed=imported, live=reached)) & works
        self._block(node.finalbody, scope)
        if caught & {"module", "name"}:
            bound = (
                constants_in((*node.body, *node.orelse)),
                constants_in(statement for handler in node.handlers for statement in handler.body),
            )
            bound[0].update(dict.fromkeys(_imported(node.body), True))
            self._tests.keep_attempt(bound, constants, reached, fails)
        return works | ends

    def _import(self, node: ast.Import | ast.ImportFrom, scope: _Scope) -> Releases | None:
        """Read an import; return for which releases it works, if it is handled otherwise."""
        rest: Releases | None = None
        self.imports += imports_of(node, self._file, scope.live)
        for alias in node.names:
            if isinstance(node, ast.Import):
                module = path = alias.name
                name = alias.asname or module.partition(".")[0]
            else:
                module = "" if node.level else node.module or ""
                path = f"{module}.{alias.name}" if alias.name != "*" else module
                name = alias.asname or alias.name
            if module.partition(".")[0] != "vllm":
                scope.names.pop(name, None)
                if isinstance(node, ast.ImportFrom):
                    self._take(node, alias.name, name, scope)
                continue
            use = Use("name", (path,), self._place(node, scope))
            exists, lacks = self._tests.exists(path)
            if scope.caught & {"module", "name"}:
                rest = exists if rest is None else rest & exists
                self._fails |= lacks
            elif scope.certain:
                self._unloadable |= lacks - exists
            if isinstance(node, ast.Import):
                scope.names[name] = (path if alias.asname else name,)
                self._use(use, "module", scope)
                continue
            if "module" in scope.caught and "name" not in scope.caught:
                # Only ModuleNotFoundError is caught: the module and the name in it are two uses.
                self._use(replace(use, targets=(module,)), "module", scope)
                use = replace(use, roots=(module,))
            self._use(use, "name", scope)
            scope.names[name] = (path,)
        return rest

    def _import_or_skip(
        self, node: ast.Expr | ast.Assign, call: ast.Call, scope: _Scope
    ) -> Releases:
        """Read ``pytest.importorskip``; return for which releases the test goes on."""
        path = text_of(call.args[0])
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                scope.names[target.id] = (path,)
        minimum = next((word.value for word in call.keywords if word.arg == "minversion"), None)
        return self._tests.exists(path)[0] & self._tests.since(minimum)

    def _take(self, node: ast.ImportFrom, exported: str, name: str, scope: _Scope) -> None:
        """Take over what is known of a name that another module of the project has: something of
        vLLM, its version, a function that returns one, or a test."""
        names, kept = self._exports(node, self._file, exported)
        for suffix in ("", "()"):
            self._tests.kept.pop(name + suffix, None)
            if test := kept.get(exported + suffix):
                self._tests.kept[name + suffix] = test
            if paths := names.get(exported + suffix):
                scope.names[name + suffix] = paths
        start = f"{exported}."
        self._tests.kept |= {
            f"{name}.{key.removeprefix(start)}": test
            for key, test in kept.items()
            if key.startswith(start)
        }

    def _class(self, node: ast.ClassDef, scope: _Scope) -> None:
        scope = self._decorated(node, scope)
        keywords = (word.value for word in node.keywords)
        for expression in (*node.bases, *keywords, *node.decorator_list):
            self._expression(expression, scope)
        bases: list[str] = []
        named_bases = [b.value if isinstance(b, ast.Subscript) else b for b in node.bases]
        for named in named_bases:
            if paths := _resolve(named, scope):
                bases += paths
                exist = (self._tests.exists(path)[0] for path in paths)
                scope = _for(scope, frozenset().union(*exist))
        self.passing |= {node.name} if bases else set()
        own: Names = {".": tuple(f"{path}()" for path in bases)} if bases else {}
        if bases and _resolve(named_bases[0], scope):  # of others it is not known what comes first
            own["super()"] = own["."]
        is_of_instance = [key for key in self._tests.kept if key.startswith(".")]
        for key in is_of_instance if not scope.dry else ():
            del self._tests.kept[key]
        nested = self._nested(
            scope, own_keys={}, within=(*scope.within, node), certain=scope.certain
        )
        for name in [name for name in nested.names if name[:1] == "." or name == "super()"]:
            del nested.names[name]  # of the class around this one
        if not scope.dry:  # first learn what the methods assign to their instance
            self._block(node.body, replace(nested, names=dict(nested.names), own=own, dry=True))
        fields = (entry for entry in node.body if isinstance(entry, ast.AnnAssign))
        self._fields[node.name] = {
            field.target.id: (field.lineno, scope.live)
            for field in fields
            if isinstance(field.target, ast.Name)
        }
        methods = [method for method in node.body if isinstance(method, Function)]
        inner = (entry for entry in node.body if isinstance(entry, ast.ClassDef))
        own |= {f".{entry.name}": () for entry in (*methods, *inner) if f".{entry.name}" not in own}
        self._block(node.body, replace(nested, own=own))
        is_mixed_in = all(path.rpartition(".")[2].endswith("Mixin") for path in bases)
        siblings = tuple(method.name for method in methods)
        for method in methods if not is_mixed_in else ():  # who mixes it in calls its methods
            # A private hook may be the former form of a public one that some class here has, too.
            is_former = method.name[:1] == "_" and method.name[1:] in self._methods
            if not (method.name.startswith("__") or is_former):
                place, signature = self._place(method, scope), Signature(parameters_of(method.args))
                if "staticmethod" not in map(last_name, method.decorator_list):
                    signature = signature.without_first()
                for base in bases:
                    use = Use("override", (base,), place, method.name, override=signature)
                    self._use(replace(use, siblings=siblings), "attribute", scope)
        scope.names.pop(node.name, None)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> None:
        arguments = node.args
        for decorator in node.decorator_list:
            self._strings.define_by(decorator, decorates=True)
        scope = self._decorated(node, scope)
        defaults = (*arguments.defaults, *filter(None, arguments.kw_defaults))
        for expression in (*node.decorator_list, *defaults):
            self._expression(expression, scope)
        # A plugin is a function of this name, which vLLM calls when it starts.
        certain = scope.certain if node.name == "register" else frozenset[int]()
        inner = self._nested(
            scope,
            caught=frozenset(),
            within=(*scope.within, node),
            returns=[],
            certain=certain,
        )
        inner.names.update(scope.own)
        positional = (*arguments.posonlyargs, *arguments.args)
        for number, argument in enumerate((*positional, *arguments.kwonlyargs)):
            is_given = (node.name, number) in self._given_versions and not scope.within
            annotated = (VERSION,) if is_given else _annotated(argument.annotation, scope)
            _bind(argument.arg, annotated, inner)
            self._tests.kept.pop(argument.arg, None)
            self._instance_of(argument.arg, argument.annotation, inner)
        ends = self._block(node.body, inner)
        self._remember(node, inner, scope, ends)

    def _decorated(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: _Scope
    ) -> _Scope:
        """Return the scope of a function or class that a decorator, or a mark of the module, leaves
        out of some releases."""
        if not scope.within:
            scope = _for(scope, self._marked)
        for decorator in node.decorator_list:
            scope = _for(scope, self._tests.decorated(decorator, scope.names))
        return scope

    def _remember(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        inner: _Scope,
        scope: _Scope,
        ends: Releases,
    ) -> None:
        """Remember what a function returns: the version, the outcome of a test, or a dict."""
        name, values = f"{node.name}()", returned(node)
        keys: Keys = {}
        for value in values:
            keys |= self._passed(value, inner)
        is_method = bool(scope.within) and isinstance(scope.within[-1], ast.ClassDef)
        if keys:
            (scope.own_keys if is_method else scope.keys)[node.name if is_method else name] = keys
        if is_method:
            is_property = any("property" in last_name(d) for d in node.decorator_list)
            key = f".{node.name}" if is_property else f".{name}"
            self._tests.keep_function(key, node, inner.returns, ends, inner.names)
            return
        scope.names.pop(node.name, None)
        scope.names.pop(name, None)
        self._tests.kept.pop(name, None)
        if returns_version_of_argument(node):
            scope.names[node.name] = (VERSION_OF,)
        elif values and any(is_version(value, inner.names) for value in values):
            scope.names[name] = (VERSION,)
        else:
            self._tests.keep_function(name, node, inner.returns, ends, inner.names)

    def _nested(self, scope: _Scope, **changes: Any) -> _Scope:
        """Return the scope of a function or class in ``scope``: it sees the names, and binds its own."""
        self._spend(len(scope.names) + len(scope.keys))
        names, keys = dict(scope.names), dict(scope.keys)
        return replace(scope, **{"names": names, "keys": keys, "certain": frozenset(), **changes})

    def _assign(self, node: ast.Assign | ast.AnnAssign, scope: _Scope) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        paths = _resolve(node.value, scope)
        if not paths and isinstance(node, ast.AnnAssign):
            paths = _annotated(node.annotation, scope)
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        bound = paths
        if is_version(node.value, scope.names):
            bound = (VERSION,)
        elif is_distribution(node.value, scope.names):
            bound = (DISTRIBUTION,)
        elif starts_server(node.value):
            bound = (COMMAND,)
        for target in targets:
            match target:
                case ast.Name(name):
                    self._keep(name, node.value, scope)
                    if scope.within and isinstance(scope.within[-1], ast.ClassDef):
                        for key in (f".{name}", f"{scope.within[-1].name}.{name}"):
                            self._tests.keep(key, node.value, scope.names)
                    self._instance_of(name, node.value, scope)
                    if name == "pytestmark" and not scope.within:
                        marks = getattr(node.value, "elts", [node.value])
                        for mark in marks:
                            self._marked &= self._tests.decorated(mark, scope.names)
                    _bind(name, bound, scope)
                case ast.Attribute(ast.Name("self"), name):
                    self._tests.keep(f".{name}", node.value, scope.names)
                    if keys := self._passed(node.value, scope):
                        scope.own_keys[name] = {**scope.own_keys.get(name, {}), **keys}
                    if not is_none:
                        known = scope.own.get(f".{name}")
                        same = known is None or set(known) <= set(bound)
                        scope.own[f".{name}"] = scope.names[f".{name}"] = bound if same else ()
                case ast.Attribute():
                    self._replace(_resolve(target, scope), node, scope)
                case ast.Subscript(ast.Attribute(_, "modules"), key):
                    self._replace([text_of(key)], node, scope, module=True)
                case ast.Subscript(ast.Name(name), ast.Constant(value)) if name in scope.keys:
                    if (key := str(value)) not in scope.probed:
                        _, earlier = scope.keys[name].get(key, (0, frozenset()))
                        scope.keys[name][key] = node.lineno, scope.live | earlier
                case ast.Tuple() | ast.List() | ast.Starred():
                    _unbind(target, scope)
                    self._unpack(target, node.value, scope)

    def _unpack(self, target: ast.expr, value: ast.expr | None, scope: _Scope) -> None:
        """Follow ``major, minor = map(int, version.split(".")[:2])``."""
        parts = walk(value) if isinstance(value, ast.expr) else ()
        if any(isinstance(p, ast.expr) and is_version(p, scope.names) for p in parts):
            for number, name in enumerate(getattr(target, "elts", ())):
                if isinstance(name, ast.Name):
                    scope.names[name.id] = (f"{PART}{number}",)

    def _replace(
        self,
        paths: Iterable[str],
        node: ast.Assign | ast.AnnAssign | ast.Call,
        scope: _Scope,
        *,
        module: bool = False,
    ) -> None:
        """Note what the code assigns to names of vLLM. What a call returns may wrap vLLM's."""
        value = node.args[-1] if isinstance(node, ast.Call) else node.value
        self._spend(len(scope.names))
        kept = set[str]().union(*scope.names.values())
        self.replaced += [
            Replaced(
                path, self._file, node.lineno, scope.live, last_name(value), path in kept, module
            )
            for path in paths
            if path.startswith("vllm.") and "()" not in path and not scope.dry
        ]

    def _instance_of(self, name: str, of: ast.expr | None, scope: _Scope) -> None:
        """Remember the attributes of an instance of one of the file's own classes, or of parsed
        arguments, which ``vars`` and ``asdict`` return as a dict."""
        keys: Keys = {}
        match of:
            case ast.Name(kind) | ast.Call(ast.Name(kind)):
                keys = self._fields.get(kind, {})
            case ast.Call(ast.Attribute(_, "parse_args" | "parse_known_args")):
                keys = self._fields.get("", {})
        scope.keys[f"{name}.__dict__"] = keys
        if not keys:
            del scope.keys[f"{name}.__dict__"]

    def _keep(self, name: str, value: ast.expr | None, scope: _Scope) -> None:
        """Remember the keys of a dict, and the outcome of a test of the version, under the name."""
        scope.keys.pop(name, None)
        if keys_of(value) is not None or (value is not None and self._passed(value, scope)):
            scope.keys[name] = self._passed(value, scope)
        self._tests.keep(name, value, scope.names)

    # Expressions

    def _expression(self, expression: ast.expr, scope: _Scope) -> None:
        if scope.dry:
            if isinstance(expression, ast.Call):
                self._change_keys(expression, scope)
            return
        inner: dict[int, str] = {}
        """Nodes that do not count as uses, and strings that do not count as uses of some kinds."""
        for node, where in self._parts(expression, scope):
            if isinstance(node, ast.Attribute):
                self._note_attribute(node, where)
            match node:
                case ast.Name(name) if name in self.functions:
                    self.functions[name].mention(node.lineno, where.live)
                case ast.Attribute(ctx=ast.Store()):
                    pass  # an assignment makes the attribute; what it belongs to is read below
                case ast.Attribute() if id(node) not in inner:
                    self._attribute(node, where)
                    inner |= {id(part): "" for part in chain(node)}
                case ast.Call(ast.Attribute(ast.Name(name), "append" | "extend"), [value]) if (
                    COMMAND in where.names.get(name, ())
                ):
                    self._add_options(name, value, where)
                case ast.Call(function, arguments):
                    given = [*arguments, *(word.value for word in node.keywords)]
                    inner |= dict.fromkeys(_strings(given), _unused_in(last_name(function)))
                    bound = [word.value for word in node.keywords if word.arg in _READ_FROM]
                    inner |= dict.fromkeys(_strings(bound), "environment")
                    if last_name(function) == "setattr":
                        self._set_attribute(node, where)
                    texts = (word.value for word in node.keywords if word.arg in _FOR_PEOPLE)
                    inner |= {id(part): "" for text in texts for part in walk(text)}
                    self._strings.define_by(node)
                    self._change_keys(node, where)
                    self._define_argument(node, where)
                    self._call(node, where)
                case ast.Compare(left, kinds, others):
                    # What a name is compared with need not exist.
                    parts = [part for other in others for part in getattr(other, "elts", [other])]
                    inner |= dict.fromkeys(_strings([left, *parts]), "name environment")
                    if isinstance(kinds[0], ast.Eq):
                        # The project's own server finds out what it is asked for.
                        self._strings.define(text_of(others[0]) or text_of(left))
                case ast.Dict(keys, values):  # of loggers
                    loggers = (k for k, v in zip(keys, values, strict=True) if k and _is_logger(v))
                    inner |= dict.fromkeys(_strings(loggers), "name")
                case ast.Subscript(_, key, ast.Load() | ast.Del()):
                    inner |= dict.fromkeys(_strings([key]), "environment")
                case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Tuple() | ast.Set():
                    if not isinstance(node, (ast.Constant, ast.JoinedStr)):
                        for part in _strings(_only_named(node)):
                            inner.setdefault(part, "environment")
                    if (kind := inner.get(id(node), "none")) and not where.speaks:
                        self._text(node, where, kind)

    def _parts(self, expression: ast.expr, scope: _Scope) -> Iterator[tuple[ast.AST, _Scope]]:
        """Yield the nodes of an expression, each with its scope: what a conditional expression, or
        ``and`` and ``or``, evaluate for some releases only."""
        todo = deque[tuple[ast.AST, _Scope]]([(expression, scope)])
        while todo:
            node, where = todo.popleft()
            yield node, where
            match node:
                case ast.IfExp(test, body, other):
                    true, false = self._tests.outcome(test, where.names)
                    todo.append((test, where))
                    where = replace(where, probed=where.probed | self._tests.probed(test))
                    todo.append((body, _for(where, true)))
                    todo.append((other, _for(where, false)))
                case ast.BoolOp(kind, values):
                    rest = where
                    for value in values:
                        todo.append((value, rest))
                        true, false = self._tests.outcome(value, where.names)
                        rest = _for(rest, true if isinstance(kind, ast.And) else false)
                        if probed := self._tests.probed(value) - rest.probed:
                            rest = replace(rest, probed=rest.probed | probed)
                case ast.Dict(keys, values) if chosen := self._tests.chosen(keys):
                    todo += [(v, _for(where, n)) for v, n in zip(values, chosen, strict=True)]
                case ast.Name() | ast.Constant():
                    pass
                case _:
                    todo.extend([(child, where) for child in children(node)])

    def _note_attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        """Note an attribute that the code takes of another object, or a private one of its own: what
        overrides a method of that name may be called by the project itself."""
        name, function = node.attr, scope.within[-1] if scope.within else None
        if chosen := self.functions.get(f".{name}"):
            chosen.mention(node.lineno, scope.live)
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        is_super = isinstance(node.value, ast.Call) and last_name(node.value.func) == "super"
        passes_on = getattr(function, "name", "") == name
        if not (passes_on or is_super or (is_own and not name.startswith("_"))):
            self.called.add(name)

    def _define_argument(self, call: ast.Call, scope: _Scope) -> None:
        """Note an option that the file's own parser takes."""
        if last_name(call.func) == "add_argument":
            named = [text_of(word.value) for word in call.keywords if word.arg == "dest"]
            names = named or [text for text in map(text_of, call.args) if text[:2] == "--"]
            for name in names[:1]:
                key = name.lstrip("-").replace("-", "_")
                self._fields.setdefault("", {})[key] = call.lineno, scope.live

    def _add_options(self, name: str, value: ast.expr, scope: _Scope) -> None:
        """Record the options that are added to a command that a name holds."""
        if COMMAND in scope.names.get(name, ()) and not scope.dry:
            self._record(self._strings.added(value, self._place(value, scope)), scope)

    def _set_attribute(self, call: ast.Call, scope: _Scope) -> None:
        """Follow ``setattr(vllm.utils, "f", own)``, also pytest's, which takes a path, too."""
        match call.args:
            case [owner, name, _] if text_of(name):
                paths = [f"{path}.{text_of(name)}" for path in _resolve(owner, scope)]
                self._replace(paths, call, scope)
            case [path, _] if text_of(path):
                self._replace([text_of(path)], call, scope)

    def _change_keys(self, call: ast.Call, scope: _Scope) -> None:
        """Follow ``kwargs.update(...)``, ``kwargs.setdefault(...)`` and ``kwargs.pop(...)``."""
        match call.func:
            case ast.Attribute(ast.Name(name), method) if name in scope.keys:
                keys = scope.keys[name]
            case _:
                return
        first = call.args[0] if call.args else None
        if method == "update":
            words = {w.arg: (w.value.lineno, scope.live) for w in call.keywords if w.arg}
            scope.keys[name] = {**keys, **self._passed(first, scope), **words}
        elif method == "setdefault" and (key := text_of(first)):
            scope.keys[name] = {key: (call.lineno, scope.live), **keys}
        elif method == "pop":
            self._drop_key(name, first, scope)

    def _drop_key(self, name: str, key: ast.expr | None, scope: _Scope) -> None:
        """Forget a key of a dict; all of them if it is not known which one is removed."""
        kept = scope.keys.get(name, {}).items() if isinstance(key, ast.Constant) else ()
        if name in scope.keys:
            scope.keys[name] = {other: line for other, line in kept if other != text_of(key)}

    def _text(self, node: ast.expr, scope: _Scope, without: str) -> None:
        """Record the uses in a string, ``without`` those of some kinds."""
        place = self._place(node, scope)
        uses = self._strings.uses_in(node, place, self._surroundings(place.line, scope))
        left_out = [*without.split(), "name"] if scope.module.fakes else without.split()
        self._record([use for use in uses if use.kind not in left_out], scope)
        self.imports += named_in(text_of(node), self._file, scope.live)

    def _surroundings(self, line: int, scope: _Scope) -> Surroundings:
        names = tuple(getattr(node, "name", "") for node in scope.within)
        innermost = scope.within[-1] if scope.within else None
        first = getattr(innermost, "lineno", max(line - NEAR, 1))
        last = getattr(innermost, "end_lineno", line + NEAR)
        return Surroundings((self._file, *names), self._lines, first - 1, last)

    def _attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        function = scope.within[-1] if scope.within else None
        is_super = isinstance(node.value, ast.Call) and last_name(node.value.func) == "super"
        if is_super and getattr(function, "name", "") == node.attr:
            return  # who calls an override has the method
        if paths := _resolve(node, scope):
            root = next((part for part in reversed(chain(node)) if _resolve(part, scope)), node)
            use = Use("name", paths, self._place(node, scope), roots=_resolve(root, scope))
            self._use(use, "attribute" if root is not node else "name", scope)

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        paths = _resolve(node.func, scope)
        if not paths:
            return
        keywords: Keys = {}
        for word in node.keywords:
            if word.arg is None:
                keywords |= self._passed(word.value, scope)
            else:
                keywords[word.arg] = word.value.lineno, scope.live
        place = self._place(node, scope)
        for name, (line, where) in keywords.items():
            at = place if line == place.line else replace(place, line=line)
            use = Use("keyword", paths, at, name, live=scope.live & where)
            self._use(use, "argument", scope)
        starred = sum(isinstance(argument, ast.Starred) for argument in node.args)
        more = any(word.arg is None for word in node.keywords)
        call = UsedCall(len(node.args) - starred, tuple(keywords), starred > 0, more)
        self._use(Use("call", paths, place, call=call), "argument", scope)

    def _passed(self, node: ast.expr | None, scope: _Scope) -> Keys:
        """Return the keywords that ``**node`` passes, with their lines and the releases for which
        they are set."""
        passed: Keys = {}
        match node:
            case ast.Name(name):
                passed = scope.keys.get(name, {})
            case ast.Attribute(ast.Name("self"), name) | ast.Call(
                ast.Attribute(ast.Name("self"), name)
            ):
                passed = scope.own_keys.get(name, {})
            case ast.Call(function, [ast.Name(name)]) if last_name(function) in ("vars", "asdict"):
                passed = scope.keys.get(f"{name}.__dict__", {})
            case ast.Attribute(ast.Name(name), "__dict__"):
                passed = scope.keys.get(f"{name}.__dict__", {})
            case ast.Call(ast.Name(name)) if name != "dict":
                passed = scope.keys.get(f"{name}()", {})
            case ast.BinOp(left, ast.BitOr(), right):
                passed = {**self._passed(left, scope), **self._passed(right, scope)}
            case ast.Dict(keys, values):
                for key, value in zip(keys, values, strict=True):
                    passed |= self._passed(value, scope) if key is None else {}
            case ast.Call(ast.Name("dict"), _, keywords):
                for word in keywords:
                    passed |= self._passed(word.value, scope) if word.arg is None else {}
        passed = {**passed, **{k: (line, scope.live) for k, line in (keys_of(node) or {}).items()}}
        self._spend(len(passed))
        return passed

    # Uses

    def _use(self, use: Use, fails_as: str, scope: _Scope) -> None:
        """Record a use of vLLM, with the conditions of its scope. ``fails_as``: the kind of failure
        (``ALL_CAUGHT``) where a release does not have it."""
        self._spend(_WORK_OF_USE)
        last = use.detail or use.targets[0].rpartition(".")[2]
        guarded = (
            fails_as in scope.caught
            or (last in scope.probed and use.kind != "version")
            or (use.kind == "name" and not scope.probed.isdisjoint(use.targets))
        )
        if guarded or scope.instead_of:
            falls_back = fails_as in scope.caught and scope.loses
            use = replace(use, instead_of=scope.instead_of, guarded=guarded, falls_back=falls_back)
        self._record([use], scope)

    def _record(self, uses: Iterable[Use], scope: _Scope) -> None:
        for use in uses if not scope.dry else ():
            live = scope.live if use.live is None else use.live
            restricted = live if live != self._tests.all else None
            self._uses.append(use if use.live == restricted else replace(use, live=restricted))

    def _place(self, node: ast.AST, scope: _Scope) -> Place:
        return Place(self._file, getattr(node, "lineno", 1), scope.module.cell)


def _for(scope: _Scope, releases: Releases) -> _Scope:
    """Return the scope of what runs for these releases only."""
    return scope if scope.live <= releases else replace(scope, live=scope.live & releases)


def _package(node: ast.expr) -> str:
    """Return the package of the module that a string names."""
    return text_of(node).partition(".")[0]


def _is_logger(value: ast.expr) -> bool:
    """Return whether a value configures a logger, which is named as its module."""
    return not {"level", "handlers"}.isdisjoint(keys_of(value) or ())


def _strings(nodes: Iterable[ast.expr]) -> list[int]:
    """Return the ids of the strings among nodes."""
    return [id(node) for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr))]


def _unused_in(function: str) -> str:
    """Return the kinds of use that strings are not which are given to a function; empty if they
    are none at all, "none" if they may be any."""
    if function.endswith("getLogger") or function == "importorskip":
        return ""
    if _COMPARES.match(function) or ASKS_FOR_MODULE.match(function):
        return "name environment"
    return "environment" if _READS_VARIABLE.match(function) else "none"


def _only_named(collection: ast.List | ast.Tuple | ast.Set) -> Sequence[ast.expr]:
    """Return the parts of a collection that names variables: nothing says that they are set. The
    first of two may be a variable with its value."""
    parts = collection.elts
    is_pair = len(parts) == 2 and not text_of(parts[1]).startswith("VLLM_")
    return () if is_pair and isinstance(collection, ast.Tuple) else parts


def _may_only_lack_vllm(node: ast.stmt, caught: frozenset[str]) -> bool:
    """Return whether a statement only fails because a release lacks something, as far as a handler
    notices that. ``caught``: what the handler handles."""
    match node:
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] == "vllm"
        case ast.Import(names):
            return all(alias.name.partition(".")[0] == "vllm" for alias in names)
        case ast.Assign(value=value) | ast.Return(value):
            if isinstance(value, (ast.Constant, ast.Name)):
                return True
        case ast.Pass():
            return True
    # Only an import raises ImportError, but what is called may have one.
    is_simple = isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return))
    calls = (part for part in walk(node) if isinstance(part, ast.Call)) if is_simple else ()
    only_says = is_simple and all(_says(call) for call in calls)
    return bool(caught) and caught <= {"module", "name"} and only_says


def _maybe(scope: _Scope) -> _Scope:
    """Return the scope of a block that may be left out."""
    return replace(scope, certain=frozenset()) if scope.certain else scope


def _bind(name: str, paths: Paths, scope: _Scope) -> None:
    if paths:
        scope.names[name] = paths
    else:
        scope.names.pop(name, None)


def _unbind(target: ast.expr, scope: _Scope) -> None:
    for node in walk(target):
        if isinstance(node, ast.Name):
            scope.names.pop(node.id, None)


def _annotated(annotation: ast.expr | None, scope: _Scope) -> Paths:
    """Return an instance of the class of vLLM in an annotation."""
    match annotation:
        case None:
            return ()
        case ast.Subscript(kind, inner) if last_name(kind) == "Optional":
            return _annotated(inner, scope)
        case ast.BinOp(left, _, ast.Constant()):
            return _annotated(left, scope)
    named = tuple(p for p in scope.names.get(text_of(annotation), ()) if p[:1] != "@")
    paths = named or _resolve(annotation, scope)
    return tuple(f"{path}()" for path in paths)


def _resolve(node: ast.expr | None, scope: _Scope) -> Paths:
    return resolve(node, scope.names)
