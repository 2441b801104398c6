"""Uses of vLLM in expressions: attributes, calls, and strings."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..api_history.definitions import children, last_name, text_of, walk
from .guards import ASKS_FOR_MODULE, VersionTests
from .own_modules import OwnModule, Replaced, named_in
from .scope import ARGUMENTS, Keys, Scope, key_of, keys_of
from .strings import NEAR, StringReader, Surroundings
from .use import Use, UsedCall

COMMAND = "@command"
"""What a name is bound to that holds the words of a command that starts the server."""
_FOR_PEOPLE = ("help", "description", "epilog", "usage", "title")
"""Keyword arguments that hold messages for users."""
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
_WORK_OF_USE = 20


class ExpressionReader:
    """Reads expressions: records what they use, and notes in ``own`` what they say about the project."""

    def __init__(self, own: OwnModule, tests: VersionTests, strings: StringReader) -> None:
        self._own, self._tests, self._strings = own, tests, strings

    def read(self, expression: ast.expr, scope: Scope) -> None:
        if scope.dry:
            if isinstance(expression, ast.Call):
                scope.change_keys(expression)
            return
        inner: dict[int, str] = {}
        """Nodes that do not count as uses, and strings that do not count as uses of some kinds."""
        for node, where in self._parts(expression, scope):
            if isinstance(node, ast.Attribute):
                self._note_attribute(node, where)
            match node:
                case ast.Name(name):
                    self._own.mention(name, node.lineno, where.live, where.perhaps)
                    if name in where.module.starred and (paths := where.resolve(node)):
                        self.use(Use("name", paths, where.place(node)), "attribute", where)
                case ast.Attribute(ctx=ast.Store()):
                    pass  # an assignment makes the attribute; what it belongs to is read below
                case ast.Attribute() if id(node) not in inner:
                    self._attribute(node, where)
                    inner |= {id(part): "" for part in chain(node)}
                case ast.Call(ast.Attribute(ast.Name(name), "append" | "extend"), [value]) if (
                    COMMAND in where.names.get(name, ())
                ):
                    self.add_options(name, value, where)
                case ast.Call(function, arguments):
                    given = [*arguments, *(word.value for word in node.keywords)]
                    inner |= _strings(given, _unused_in(last_name(function)))
                    bound = (word.value for word in node.keywords if word.arg in _READ_FROM)
                    inner |= _strings(bound, "environment")
                    self._set_attribute(node, where)
                    texts = (word.value for word in node.keywords if word.arg in _FOR_PEOPLE)
                    inner |= {id(part): "" for text in texts for part in walk(text)}
                    self._strings.define_by(node, where.module.file)
                    where.change_keys(node)
                    where.define_argument(node)
                    self._own.note_parser(node)
                    self._call(node, where)
                case ast.Compare(left, kinds, others):
                    # What a name is compared with need not exist.
                    parts = [part for other in others for part in getattr(other, "elts", [other])]
                    inner |= _strings([left, *parts], "name environment")
                    if isinstance(kinds[0], ast.Eq):
                        # The project's own server finds out what it is asked for.
                        self._strings.define(text_of(others[0]) or text_of(left))
                case ast.Dict(keys, values):  # of loggers
                    loggers = (k for k, v in zip(keys, values, strict=True) if k and _is_logger(v))
                    inner |= _strings(loggers, "name")
                case ast.Subscript(_, key, ast.Load() | ast.Del()):
                    inner |= _strings([key], "environment")
                case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Tuple() | ast.Set():
                    for part, unused in _strings(_only_named(node), "environment").items():
                        inner.setdefault(part, unused)
                    if (kind := inner.get(id(node), "none")) and not where.speaks:
                        self._text(node, where, kind)

    def _parts(self, expression: ast.expr, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        """Yield the nodes of an expression, each with its scope: what a conditional expression, or
        ``and`` and ``or``, evaluate for some releases only."""
        todo = deque[tuple[ast.AST, Scope]]([(expression, scope)])
        while todo:
            node, where = todo.popleft()
            yield node, where
            match node:
                case ast.IfExp(test, body, other):
                    true, false = self._tests.outcome(test, where.names)
                    todo.append((test, where))
                    where = replace(where, probed=where.probed | self._tests.probed(test))
                    where = where.doubting(self._tests.doubt(test, where.names))
                    todo += (body, where.only_for(true)), (other, where.only_for(false))
                case ast.BoolOp(kind, values):
                    rest = where
                    for value in values:
                        todo.append((value, rest))
                        true, false = self._tests.outcome(value, where.names)
                        rest = rest.only_for(true if isinstance(kind, ast.And) else false)
                        rest = rest.doubting(self._tests.doubt(value, where.names))
                        if probed := self._tests.probed(value) - rest.probed:
                            rest = replace(rest, probed=rest.probed | probed)
                case ast.Dict(keys, values) if chosen := self._tests.chosen(keys):
                    todo += [(v, where.only_for(n)) for v, n in zip(values, chosen, strict=True)]
                case ast.Name() | ast.Constant():
                    pass
                case _:
                    todo += [(child, where) for child in children(node)]

    def _note_attribute(self, node: ast.Attribute, scope: Scope) -> None:
        """Record the name of an attribute of another object, or of a private one of the instance: the
        project itself may call a method of that name, which then need not match vLLM's."""
        name = node.attr
        self._own.mention(f".{name}", node.lineno, scope.live, scope.perhaps)
        is_own = key_of(node.value) == "."
        parameters = getattr(scope.around, "args", None)
        given = (
            {part.arg for part in walk(parameters) if isinstance(part, ast.arg)}
            if parameters
            else ()
        )
        is_made_here = (
            isinstance(node.value, ast.Name) and not is_own and node.value.id not in given
        )
        passes_on = getattr(scope.around, "name", "") == name and not is_made_here
        if not (passes_on or _is_of_super(node) or (is_own and not name.startswith("_"))):
            self._own.called.add(name)

    def add_options(self, name: str, value: ast.expr, scope: Scope) -> None:
        """Record the options that are added to a command that a name holds."""
        if COMMAND in scope.names.get(name, ()) and not scope.dry:
            self._record(self._strings.added(value, scope.place(value)), scope)

    def _set_attribute(self, call: ast.Call, scope: Scope) -> None:
        """Follow ``setattr(vllm.utils, "f", own)``, also pytest's, which takes a path, too; ``patch.object``,
        and helpers that are given a function of the module."""
        sets = last_name(call.func) in ("setattr", "object")
        match call.args:
            case [owner, name, value, *_] if text_of(name) and (
                sets or last_name(value) in self._own.functions
            ):
                paths = [f"{path}.{text_of(name)}" for path in scope.resolve(owner)]
                self.replace(paths, call, scope)
            case [path, _] if sets and text_of(path):
                self.replace([text_of(path)], call, scope)

    def replace(
        self,
        paths: Iterable[str],
        node: ast.Assign | ast.AnnAssign | ast.Call,
        scope: Scope,
        *,
        module: bool = False,
    ) -> None:
        """Note what the code assigns to names of vLLM. What a call returns may wrap vLLM's."""
        value = node.args[:3][-1] if isinstance(node, ast.Call) else node.value
        scope.spend(len(scope.names))
        kept = set[str]().union(*scope.names.values())
        name, file = last_name(value), scope.module.file
        self._own.replaced += [
            Replaced(path, file, node.lineno, scope.live, name, path in kept, module)
            for path in paths
            if path.startswith("vllm.") and "()" not in path and not scope.dry
        ]

    def _text(self, node: ast.expr, scope: Scope, without: str) -> None:
        """Record the uses in a string, ``without`` those of some kinds."""
        place = scope.place(node)
        uses = self._strings.uses_in(node, place, _surroundings(place.line, scope))
        left_out = [*without.split(), "name"] if scope.module.fakes else without.split()
        self._record([use for use in uses if use.kind not in left_out], scope)
        self._own.imports += named_in(text_of(node), place.file, scope.live, scope.perhaps)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> None:
        if _is_of_super(node) and getattr(scope.around, "name", "") == node.attr:
            return  # who calls an override has the method
        match node:
            case ast.Attribute(ast.Name(name), argument) if ARGUMENTS in scope.names.get(name, ()):
                if option := self._strings.option_of(argument):
                    use = Use("option", (option,), scope.place(node), detail=ARGUMENTS)
                    self.use(use, "attribute", scope)
        if paths := scope.resolve(node):
            parts = ((part, scope.resolve(part)) for part in reversed(chain(node)))
            # What the code assigned to an attribute of its instance is reached from there.
            root, roots = next((p, r) for p, r in parts if r and paths[0].startswith(r))
            use = Use("name", paths, scope.place(node), roots=roots)
            scope = scope.only_for(self._tests.imported(chain(node)[-1]))
            self.use(use, "attribute" if root is not node else "name", scope)

    def _call(self, node: ast.Call, scope: Scope) -> None:
        if isinstance(node.func, ast.Name):
            for number, argument in enumerate(node.args):
                self._own.give(node.func.id, number, scope.resolve(argument))
            for word in node.keywords:
                self._own.give(node.func.id, word.arg or "", scope.resolve(word.value))
        paths = scope.resolve(node.func)
        if not paths:
            return
        scope = scope.only_for(self._tests.imported(chain(node)[-1]))
        keywords: Keys = {}
        for word in node.keywords:
            if word.arg is None:
                keywords |= scope.passed(word.value)
            else:
                keywords[word.arg] = word.value.lineno, scope.live
        place = scope.place(node)
        for name, (line, where) in keywords.items():
            at = place if line == place.line else replace(place, line=line)
            use = Use("keyword", paths, at, name, live=scope.live & where)
            self.use(use, "argument", scope)
        starred = sum(isinstance(argument, ast.Starred) for argument in node.args)
        more = any(word.arg is None for word in node.keywords)
        call = UsedCall(len(node.args) - starred, tuple(keywords), starred > 0, more)
        self.use(Use("call", paths, place, call=call), "argument", scope)

    def use(self, use: Use, fails_as: str, scope: Scope) -> None:
        """Record a use of vLLM, with the conditions of its scope. ``fails_as``: the kind of failure
        (``ALL_CAUGHT``) where a release does not have it."""
        scope.spend(_WORK_OF_USE)
        last = use.detail or use.targets[0].rpartition(".")[2]
        if use.detail == ARGUMENTS:
            last = use.targets[0].removeprefix("--").replace("-", "_")
        guarded = (
            fails_as in scope.caught
            or (last in scope.probed and use.kind != "version")
            or (use.kind == "name" and not scope.probed.isdisjoint(use.targets))
        )
        if guarded or scope.instead_of:
            falls_back = fails_as in scope.caught and scope.loses
            use = replace(use, instead_of=scope.instead_of, guarded=guarded, falls_back=falls_back)
        self._record([use], scope)

    def _record(self, uses: Iterable[Use], scope: Scope) -> None:
        for use in uses if not scope.dry else ():
            live = scope.live if use.live is None else use.live
            restricted = live if live != self._tests.all else None
            if (use.live, use.perhaps) != (restricted, scope.perhaps):
                use = replace(use, live=restricted, perhaps=scope.perhaps)
            scope.module.uses.append(use)


def chain(node: ast.expr) -> list[ast.expr]:
    """Return the parts of ``a.b().c`` from the whole to its first name."""
    parts = [node]
    while isinstance(node, (ast.Attribute, ast.Call, ast.Await)):
        node = node.func if isinstance(node, ast.Call) else node.value
        parts.append(node)
    return parts


def _is_of_super(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Call) and last_name(node.value.func) == "super"


def _surroundings(line: int, scope: Scope) -> Surroundings:
    names = (getattr(node, "name", "") for node in scope.within)
    first = getattr(scope.around, "lineno", max(line - NEAR, 1))
    last = getattr(scope.around, "end_lineno", line + NEAR)
    return Surroundings((scope.module.file, *names), scope.module.lines, first - 1, last)


def _is_logger(value: ast.expr) -> bool:
    """Return whether a value configures a logger, which is named as its module."""
    return not {"level", "handlers"}.isdisjoint(keys_of(value) or ())


def _strings(nodes: Iterable[ast.expr], unused: str) -> dict[int, str]:
    """Return the ids of the strings among nodes, with the kinds of use that they are not."""
    return {id(node): unused for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr))}


def _unused_in(function: str) -> str:
    """Return the kinds of use that strings are not which are given to a function; empty if they
    are none at all, "none" if they may be any."""
    if function.endswith("getLogger") or function == "importorskip":
        return ""
    if _COMPARES.match(function) or ASKS_FOR_MODULE.match(function):
        return "name environment"
    return "environment" if _READS_VARIABLE.match(function) else "none"


def _only_named(collection: ast.expr) -> Sequence[ast.expr]:
    """Return the items of a collection that only names variables and does not set them. A pair may be
    a variable and its value."""
    parts: Sequence[ast.expr] = getattr(collection, "elts", ())
    is_pair = len(parts) == 2 and not text_of(parts[1]).startswith("VLLM_")
    return () if is_pair and isinstance(collection, ast.Tuple) else parts
