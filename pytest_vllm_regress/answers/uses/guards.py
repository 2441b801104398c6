"""Conditions on the version of vLLM: for which releases is a test true, and what does a test ask
for."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq, ge, gt, le, lt, ne

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ...util.versions import specifiers_of, version_of
from ..api_history.definitions import last_name, text_of, walk
from .blocks import Function
from .probes import (
    LISTS_PARAMETERS,
    MAX_CALLS,
    MAX_TABLE,
    OF_ATTRIBUTE,
    OF_VERSION,
    TELLS,
    Filled,
    asks_for_attribute,
    asks_for_v1,
    each,
    inlined,
    is_of_model,
    is_probe,
    is_small,
    names_version,
    probed_names,
)
from .scope import (
    VERSION_PARTS,
    Names,
    Paths,
    Releases,
    is_version,
    key_of,
    part_of_version,
    resolve,
)

Branches = tuple[Releases, Releases]
"""The releases for which a test may be true, and those for which it may be false."""
ASKS_FOR_MODULE = re.compile(
    r"(?i)_*(?:find_spec$|(?:has|is|can|check|try|safe|optional|maybe|lazy|soft)\w*_\w*(?:module|package|import|avail|exist|install))"
)
"""Names of functions that check whether a module exists."""
_OPERATORS = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_MIRRORED = str.maketrans("<>", "><")
_COMPARING = {
    re.compile(r"(?i)at_?least|min|_ge\b|_gte\b|newer|since|above"): ge,
    re.compile(r"(?i)below|_lt\b|older|before"): lt,
    re.compile(r"(?i)version_is$|is_version$|version_eq|equal"): eq,
}
"""Names of functions that compare the version, and how."""
_VERSION_RANGE = re.compile(
    r"(?i)_*(?:requires?|check|supported|for|if|only)?_*versions?(?:_*(?:range|is|in|between|spec|check|guard))?"
)
"""Names of functions that are given a range of versions, and name no package."""
_OF_OTHER = re.compile(
    r"(?i)torch|transformers|cuda|python|(?:^|_)py|sglang|triton|numpy|(?:^|_)(?:hf|np|tf|jax|ray)(?:_|$)"
)
"""Names of decorators that ask for versions of another package."""
_SKIPS = ("skipif", "skipunless")
"""Decorators that leave tests out, in lower case."""
_TESTS = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.DictComp, ast.ListComp, ast.SetComp)
_IDENTITY = (ast.Is, ast.IsNot)


@dataclass(frozen=True)
class KeptTest:
    """What the code keeps of a test in a name.

    ``outcome``: None if it is true or false for any release. ``exists``: for which releases the
    name may be other than None, and for which it may be None. ``signature``: of what it is one.
    ``versions``: the constant versions that the name holds; ``allowed``: the range of versions.
    ``returns``: what a function returns, with its parameters and what names mean in it; or what a
    mapping has for its key. ``doubt``: see ``VersionTests.doubt``. ``imported``: for which
    releases the name is what a handled import binds.
    """

    outcome: Branches | None
    exists: Branches | None = None
    probed: frozenset[str] = frozenset()
    signature: Paths = ()
    versions: tuple[Version, ...] = ()
    allowed: SpecifierSet | None = None
    returns: tuple[ast.expr, tuple[str, ...], Names] | None = None
    doubt: str = ""
    imported: Releases | None = None


class VersionTests:
    """Judges tests for the releases of a history.

    ``v0`` are those with the V0 engine: in others ``VLLM_USE_V1`` is always true. ``asked`` returns
    the outcome of a test whether one of some paths has a parameter ("keyword") or an attribute
    ("name").
    """

    def __init__(
        self,
        releases: Sequence[str],
        v0: Releases,
        asked: Callable[[str, Paths, str], Branches],
    ) -> None:
        self._asked = asked
        self._versions = tuple(map(Version, releases))
        self.all: Releases = frozenset(range(len(releases)))
        self._any = self.all, self.all
        self._v0 = v0
        self._depth = 0
        self.kept: dict[str, KeptTest] = {}
        """Tests of the release that are stored under a name, by ``key_of``."""
        self.constants: dict[str, bool] = {}
        """Constants by name, which may differ for some releases."""
        self.foreign: set[str] = set()
        """Names of imported modules of other packages."""

    def keep(self, name: str, value: ast.expr | None, names: Names) -> None:
        """Note the test that the code keeps in a name, if ``value`` is one."""
        self.kept.pop(name, None)
        self.constants.pop(name, None)
        if isinstance(value, ast.Constant):
            self.constants[name] = bool(value.value)
        kinds = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call, ast.Attribute, ast.Name)
        if isinstance(value, kinds):
            outcome = self.outcome(value, names)
            is_object = isinstance(value, (ast.Call, ast.Attribute))
            self.kept[name] = KeptTest(
                outcome if outcome != self._any else None,
                self._exists(value, names),
                probed_names(value) if any(map(is_probe, walk(value))) else frozenset(),
                self._signature(value, names) if is_object else (),
            )
        match value:
            case ast.Dict(keys, values) if len(keys) <= MAX_TABLE:
                for key, entry in zip(keys, values, strict=True):
                    if text := text_of(key):
                        self.keep(f"{name}[{text}]", entry, names)
            case ast.DictComp(ast.Name(key), entry, [ast.comprehension(ast.Name(target))]) if (
                key == target and is_small(entry)
            ):
                self.kept[name] = KeptTest(None, returns=(entry, (key,), names))
        versions, allowed = self._bounds(value), self._allowed(value)
        doubt = self.doubt(value, names) if isinstance(value, (*_TESTS, ast.Call)) else ""
        if versions or allowed or doubt:
            kept = self.kept.get(name, KeptTest(None))
            self.kept[name] = replace(kept, versions=versions, allowed=allowed, doubt=doubt)

    def keep_function(
        self,
        name: str,
        node: Function,
        returns: Iterable[tuple[ast.expr | None, Releases]],
        ends: Releases,
        names: Names,
    ) -> None:
        """Note what a function tells about the release. ``returns``: what it returns for which
        releases; ``ends``: those for which its end is reached."""
        self.kept.pop(name, None)
        true, false, values, may_fail = frozenset[int](), ends, [], False
        without: Releases = frozenset()
        is_decided = False
        for value, live in returns:
            if value is None or (isinstance(value, ast.Constant) and not value.value):
                without |= live
                may_fail = True
                continue
            values.append(value)
            is_true, is_false = self.outcome(value, names)
            is_constant = isinstance(value, ast.Constant)
            is_decided |= not is_constant and (is_true, is_false) != self._any
            true, false = true | live & is_true, false if is_constant else false | live & is_false
        # A function that compares the version returns a plain False if vLLM is not installed.
        if not (is_decided and without == self.all):
            false |= without
        is_told = (values or may_fail) and (true, false) != self._any
        outcome = (true, false) if is_told else None
        arguments = node.args
        parameters = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))
        single = inlined(values[0], node) if len(values) == 1 and parameters else None
        if single and may_fail:  # a handler returns False
            single = ast.BoolOp(ast.And(), [single, ast.Constant(...)])
        probes = filter(is_probe, walk(node)) if TELLS.match(node.name) else ()
        kept = KeptTest(
            outcome,
            probed=frozenset[str]().union(*map(probed_names, probes)),
            returns=(single, parameters, names) if single else None,
            doubt=next(
                filter(None, (self.doubt(v, names) for v in values if isinstance(v, _TESTS))), ""
            ),
        )
        if outcome or kept.probed or single or kept.doubt:
            self.kept[name] = kept

    def keep_attempt(
        self,
        names: tuple[Mapping[str, bool], Mapping[str, bool]],
        before: Mapping[str, bool],
        imported: Iterable[str],
        works: Releases,
        fails: Releases,
    ) -> None:
        """Note the names that are true or false by whether a ``try`` works: those that it binds if
        it does, and those that its handlers bind. ``before``: the constants before it. What is
        ``imported`` is vLLM's only where all of it works."""
        for name in {**names[0], **names[1]}:
            values = [bound.get(name, before.get(name)) for bound in names]
            if None not in values and values[0] != values[1]:
                outcome = (works, fails) if values[0] else (fails, works)
                kept = self.kept.get(name, KeptTest(None))
                self.kept[name] = replace(kept, outcome=outcome, exists=None)
        for name in imported if works != self.all else ():
            self.kept[name] = replace(self.kept.get(name, KeptTest(None)), imported=works)

    def imported(self, name: object) -> Releases:
        """Return for which releases a name is what an import binds, of which the failure is handled."""
        kept = self.kept.get(getattr(name, "id", ""))
        return self.all if kept is None or kept.imported is None else kept.imported

    def decorated(self, decorator: ast.expr, names: Names) -> Releases:
        """Return the releases for which a decorator lets a function run."""
        match decorator:
            case ast.Call(function, [single], []) if not _OF_OTHER.search(last_name(function)):
                if allowed := self._allowed(single):
                    return self._within(allowed)[0]
        if isinstance(decorator, (ast.Call, ast.Name, ast.Attribute)):
            return self.outcome(decorator, names)[0]
        return self.all

    def after_handler(
        self, before: Mapping[str, KeptTest], body: Sequence[ast.stmt], enters: Releases
    ) -> None:
        """Keep outcomes of a ``try`` also where a handler, which is for the releases ``enters``, assigns
        a constant to the name: ``is_old = False``."""
        for node in body:
            match node:
                case ast.Assign([ast.Name(name)], ast.Constant(value)):
                    if (kept := before.get(name)) and kept.outcome:
                        true, false = kept.outcome
                        outcome = (true | enters, false) if value else (true, false | enters)
                        self.kept[name] = replace(kept, outcome=outcome)

    def probed(self, test: ast.expr) -> frozenset[str]:
        """Return the names for which a test asks, also one that the code keeps in a name."""
        keys = (key_of(node) for node in walk(test))
        kept = (self.kept[key].probed for key in keys if key in self.kept)
        return probed_names(test).union(*kept)

    def outcome(self, test: ast.expr, names: Names) -> Branches:
        """Return for which releases ``test`` may be true and false; ``names`` are the names that
        are bound."""
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                true, false = self.outcome(operand, names)
                return false, true
            case ast.BoolOp(kind, values):
                outcomes = [self.outcome(value, names) for value in values]
                if isinstance(kind, ast.And):
                    return _all_of(outcomes)
                false, true = _all_of([(false, true) for true, false in outcomes])
                return true, false
            case ast.Name() | ast.Attribute() | ast.Call() if kept := self.kept.get(key_of(test)):
                if kept.outcome:
                    return kept.outcome
                if kept.returns and isinstance(test, ast.Call):
                    return self._returned(test, *kept.returns, names)
            case ast.Subscript(mapping, key) if kept := self.kept.get(
                f"{key_of(mapping)}[{text_of(key)}]"
            ) or self.kept.get(key_of(mapping)):
                if kept.outcome:
                    return kept.outcome
                if kept.returns:
                    return self._returned(ast.Call(mapping, [key], []), *kept.returns, names)
            case ast.Call(ast.Name("any" | "all" as which), [values]) if parts := each(values):
                kind = ast.Or() if which == "any" else ast.And()
                return self.outcome(ast.BoolOp(kind, parts), names)
            case ast.Call(ast.Name("bool" | "callable"), [value]):
                return self.outcome(value, names)
            case ast.Compare(left, [ast.Is() | ast.IsNot() as kind], [ast.Constant(None)]):
                true, false = self._exists(left, names) or self.outcome(left, names)
                return (true, false) if isinstance(kind, ast.IsNot) else (false, true)
            case ast.Call(ast.Name("getattr"), [_, _, _]) if exists := self._exists(test, names):
                return exists[0], self.all  # an attribute that exists may be false
            case ast.Call(function) if last_name(function).lower() in _SKIPS:
                words = (word.value for word in test.keywords if word.arg == "condition")
                outcomes = [self.outcome(test, names) for test in (*test.args[:1], *words)]
                true, false = _all_of(outcomes or [self._any])
                skips = last_name(function).lower() == "skipif"
                return (false, true) if skips else (true, false)
            case _ if (is_v1 := asks_for_v1(test, names)) is not None:
                return (self.all, self._v0) if is_v1 else (self._v0, self.all)
            case ast.Compare(left, [ast.In() | ast.NotIn() as kind], [container]) if is_version(
                left, names
            ):
                true, false = self._contained(container)
                return (true, false) if isinstance(kind, ast.In) else (false, true)
            case ast.Call(ast.Attribute(container, "contains"), [version, *_]) if is_version(
                version, names
            ):
                return self._contained(container)
            case ast.Call(ast.Attribute(owner, "startswith"), [prefix]) if is_version(owner, names):
                parts = prefix.elts if isinstance(prefix, ast.Tuple) else [prefix]
                if prefixes := tuple(filter(None, map(text_of, parts))):
                    return self._where(lambda version: str(version).startswith(prefixes))
            case ast.Compare(left, [ast.In() | ast.NotIn() as kind, *_], [container, *_]):
                # "x" in inspect.signature(f).parameters
                name, paths = text_of(left), self._signature(container, names)
                if paths and name:
                    true, false = self._asked("keyword", paths, name)
                    return (true, false) if isinstance(kind, ast.In) else (false, true)
            case ast.Compare(left, kinds, others):
                compared = zip([left, *others], kinds, others, strict=False)  # a <= b < c
                return _all_of([self._compared(*parts, names) for parts in compared])
            case ast.Call(function, [owner, attribute]) if last_name(function) == "hasattr":
                return self._has(owner, attribute, names) or self._called(test)
            case ast.Call():
                return self._exists(test, names) or self._called(test)
        return self._any

    def since(self, version: ast.expr | None) -> Releases:
        """Return the releases from a version on; all of them if it is not known."""
        bound = self._bound(version)
        return self.all if bound is None else self._split(ge, bound)[0]

    def chosen(self, keys: Sequence[ast.expr | None]) -> list[Releases]:
        """Return for which releases each entry of a table is for whose keys are releases: those up
        to the next one, or only its own if there is no other. Nothing for other tables."""
        bounds = [bound for key in keys[:MAX_TABLE] if (bound := self._bound(key)) is not None]
        if not bounds or len(bounds) < len(keys):
            return []
        releases = {v.release[:length] for v in self._versions for length in (2, 3, 4)}
        if not all(bound.release in releases for bound in bounds):
            return []
        if len(bounds) == 1:
            (own,) = bounds
            return [self._where(lambda v: v.release[: len(own.release)] == own.release)[0]]
        since = [self._split(ge, bound)[0] for bound in bounds]
        return [one.difference(*(other for other in since if other < one)) for one in since]

    def is_open(self, outcome: Branches) -> bool:
        """Return whether a test says nothing about the release."""
        return outcome == self._any

    def doubt(self, test: ast.expr | None, names: Names) -> str:
        """Return why the outcome of a test depends on the release in a way that the reader cannot decide;
        empty if it can, or if the test is about something else."""
        match test:
            case None:
                return ""
            case ast.BoolOp(_, values):
                return next(filter(None, (self.doubt(value, names) for value in values)), "")
            case ast.UnaryOp(ast.Not(), operand):
                return self.doubt(operand, names)
        if not self.is_open(self.outcome(test, names)):
            return ""
        operands: list[ast.expr] = []
        for node in walk(test):
            kept = self.kept.get(key_of(node))
            if kept and kept.doubt:
                return kept.doubt
            if names_version(node):
                return OF_VERSION
            match node:
                case ast.Compare(left, kinds, others) if not isinstance(kinds[0], _IDENTITY):
                    operands += [left, *others]
                case ast.Call(function, arguments):
                    operands += [*arguments, getattr(function, "value", function)]
        if any(is_version(o, names) or part_of_version(o, names) is not None for o in operands):
            return OF_VERSION
        owner = asks_for_attribute(test)
        # What its own instance has is mostly its state.
        if owner is None or key_of(owner) == "." or is_of_model(owner):
            return ""
        is_foreign = any(key_of(part) in self.foreign for part in walk(owner))
        return "" if is_foreign else OF_ATTRIBUTE

    def exists(self, path: str) -> Branches:
        """Return the releases that may have what a path means, and those that may lack it."""
        return self._asked("name", (path,), "")

    def _has(self, owner: ast.expr, attribute: ast.expr, names: Names) -> Branches | None:
        paths, name = resolve(owner, names), text_of(attribute)
        if not (paths and name):
            return None
        return self._asked("name", tuple(f"{path}.{name}" for path in paths), "")

    def _exists(self, node: ast.expr, names: Names) -> Branches | None:
        """Return for which releases an expression may be other than None, and for which it may be
        None: what is looked up with a default. None if that is not known."""
        match node:
            case ast.Name() | ast.Attribute() if kept := self.kept.get(key_of(node)):
                return kept.exists
            case ast.Call(ast.Name("getattr"), [owner, attribute, _]):
                return self._has(owner, attribute, names)
            case ast.Call(function, [path, *_]) if ASKS_FOR_MODULE.match(last_name(function)):
                module = text_of(path)
                return self.exists(module) if module.startswith("vllm.") else None
            case ast.Call(ast.Attribute(container, "get"), [key, *_]):
                paths, name = self._signature(container, names), text_of(key)
                return self._asked("keyword", paths, name) if paths and name else None
        return None

    def _returned(
        self,
        call: ast.Call,
        value: ast.expr,
        parameters: tuple[str, ...],
        inside: Names,
        names: Names,
    ) -> Branches:
        """Judge a call of a function: what it returns, with the arguments in it."""
        self._depth += 1
        try:
            if self._depth > MAX_CALLS:
                return self._any
            first = parameters[:1] in (("self",), ("cls",)) and isinstance(call.func, ast.Attribute)
            given = dict(zip(parameters[first:], call.args, strict=False))
            given |= {word.arg: word.value for word in call.keywords if word.arg}
            small = {name: argument for name, argument in given.items() if is_small(argument)}
            filled = Filled(small).visit(copy.deepcopy(value))
            own = {name: paths for name, paths in inside.items() if name not in parameters}
            return self.outcome(filled, {**own, **names})
        finally:
            self._depth -= 1

    def _signature(self, node: ast.expr, names: Names) -> Paths:
        """Return of what an expression has the signature; nothing if it has none."""
        for part in walk(node):
            match part:
                case ast.Name(name) if (kept := self.kept.get(name)) and kept.signature:
                    return kept.signature
                case ast.Call(function, [subject, *_]) if last_name(function) in LISTS_PARAMETERS:
                    return resolve(subject, names)
                case ast.Attribute(subject, "__code__" | "__dataclass_fields__" | "model_fields"):
                    return resolve(subject, names)
        return ()

    def _compared(self, left: ast.expr, kind: ast.cmpop, right: ast.expr, names: Names) -> Branches:
        sign = _SIGNS.get(type(kind), "")
        for side, other, operator in (
            (left, right, sign),
            (right, left, sign.translate(_MIRRORED)),
        ):
            match part_of_version(side, names), other:
                case int(part), ast.Constant(int(number)) if operator:
                    return self._compared_part(_OPERATORS[operator], part, number)
            bound = self._bound(other) if operator and is_version(side, names) else None
            if bound is not None:
                return self._split(_OPERATORS[operator], bound, _length(side))
        return self._any

    def _compared_part(
        self, compare: Callable[[int, int], bool], part: int, number: int
    ) -> Branches:
        return self._where(lambda version: compare((*version.release, 0, 0, 0)[part], number))

    def _bound(self, node: ast.expr | None) -> Version | None:
        """Return the version that is written out, or kept in a name."""
        match node:
            case ast.Name() | ast.Attribute() if kept := self.kept.get(key_of(node)):
                return kept.versions[0] if len(kept.versions) == 1 else None
            case ast.Attribute(value, name) if name in VERSION_PARTS:
                return self._bound(value)
            case ast.Call(_, [argument]):
                return self._bound(argument)
            case ast.Tuple(elements):
                whole = all(isinstance(getattr(e, "value", None), int) for e in elements)
                return _version(".".join(map(ast.unparse, elements))) if whole else None
        return _version(text_of(node))

    def _allowed(self, node: ast.expr | None) -> SpecifierSet | None:
        """Return the range of versions that an expression is; None if it is not known."""
        match node:
            case ast.Name() | ast.Attribute() if kept := self.kept.get(key_of(node)):
                return kept.allowed
            case ast.Call(function, [text]) if last_name(function) == "SpecifierSet":
                return specifiers_of(text_of(text))
        written = text_of(node)
        is_range = written.startswith(("<", ">", "=", "!", "~")) and written not in _OPERATORS
        return specifiers_of(written) if is_range else None

    def _contained(self, container: ast.expr) -> Branches:
        """Judge whether the version is in a range or a list."""
        if (allowed := self._allowed(container)) is not None:
            return self._within(allowed)
        bounds = self._bounds(container)
        return self._where(lambda version: version in bounds) if bounds else self._any

    def _bounds(self, node: ast.expr | None) -> tuple[Version, ...]:
        """Return the versions in an expression: one, or those in a list; none if a part of it is
        no version."""
        if bound := self._bound(node):
            return (bound,)
        match node:
            case ast.Name() | ast.Attribute() if kept := self.kept.get(key_of(node)):
                return kept.versions
            case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
                bounds = [self._bound(part) for part in parts]
                return () if None in bounds else tuple(filter(None, bounds))
        return ()

    def _called(self, call: ast.Call) -> Branches:
        """Judge calls such as ``is_vllm_version_at_least("0.8.5")`` and ``compare_versions("vllm",
        ">=", "0.8.5")``."""
        name, texts = last_name(call.func), list(map(text_of, call.args))
        is_range = _VERSION_RANGE.fullmatch(name) is not None
        if "vllm" not in name.lower() and "vllm" not in texts and not is_range:
            return self._any
        if allowed := next(filter(None, map(self._allowed, call.args)), None):
            return self._within(allowed)
        if is_range:
            return self._any
        bounds = list(filter(None, map(self._bound, call.args)))
        signs = [_OPERATORS[text] for text in texts if text in _OPERATORS]
        signs += [sign for pattern, sign in _COMPARING.items() if pattern.search(name)]
        if bounds and signs:
            return self._split(signs[0], bounds[0])
        for word in call.keywords:
            if word.arg == "min_version" and (bound := self._bound(word.value)):
                return self._split(ge, bound)
        return self._any

    def _split(
        self, compare: Callable[[Version, Version], bool], bound: Version, length: int = 0
    ) -> Branches:
        """Compare each release, or only the first ``length`` parts of its number."""
        return self._where(
            lambda v: compare(
                Version(".".join(map(str, v.release[:length]))) if length else v, bound
            )
        )

    def _within(self, allowed: SpecifierSet) -> Branches:
        return self._where(lambda version: allowed.contains(version, prereleases=True))

    def _where(self, holds: Callable[[Version], bool]) -> Branches:
        true = frozenset(n for n, version in enumerate(self._versions) if holds(version))
        return true, self.all - true


def _length(version: ast.expr) -> int:
    """Return how many parts of the number a slice such as ``version[:2]`` has; 0 for all."""
    match version:
        case ast.Subscript(_, ast.Slice(None, ast.Constant(int(length)))):
            return max(length, 0)
        case ast.Tuple(parts):
            return len(parts)
    return 0


def _all_of(outcomes: Sequence[Branches]) -> Branches:
    """Return for which releases all of some tests may be true, and any may be false."""
    true, false = zip(*outcomes, strict=True)
    return frozenset.intersection(*true), frozenset.union(*false)


def _version(text: str) -> Version | None:
    return version_of(text) if text[:1].isdigit() or text[:2] in ("v0", "v1") else None
