"""Conditions on the version of vLLM: for which releases is a test true, and what does a test ask
for."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from packaging.version import Version

from ...util.versions import version_of
from ..api_history.source import text_of
from .syntax import name_of

Releases = frozenset[int]
Branches = tuple[Releases, Releases]
"""The releases for which a test may be true, and those for which it may be false."""
MAX_PATH = 300
VERSION = "@version"
"""What a name is bound to that holds the version of vLLM."""
_OPERATORS: dict[type[ast.cmpop] | str, Callable[[Version, Version], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_MIRRORED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_COMPARING = {
    re.compile(r"(?i)at_?least|min|_ge\b|_gte\b|newer|since|above"): operator.ge,
    re.compile(r"(?i)below|_lt\b|older|before"): operator.lt,
    re.compile(r"(?i)version_is$|is_version$|version_eq|equal"): operator.eq,
}
"""Names of functions that compare the version, and how."""
_VERSION_NAME = re.compile(r"(?i)_*vllm_*(?:base_*)?ver(?:sion)?")
_V1_NAME = re.compile(r"_*(?:is|use|using)_(?:vllm_)?v1(?:_engine)?")
_V1_VARIABLE = "vllm.envs.VLLM_USE_V1"
_VERSION_PARTS = ("base_version", "release", "public", "version")
_WRAPPERS = ("Version", "parse", "parse_version", "str", "StrictVersion", "LooseVersion")


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
        asked: Callable[[str, tuple[str, ...], str], Branches],
    ) -> None:
        self._asked = asked
        self._signatures: dict[str, tuple[str, ...]] = {}
        self._versions = tuple(map(Version, releases))
        self.all: Releases = frozenset(range(len(releases)))
        self._v0 = v0
        self._flags: dict[str, Branches] = {}
        self._probes: dict[str, frozenset[str]] = {}

    def keep(self, name: str, value: ast.expr | None, names: Mapping[str, Sequence[str]]) -> None:
        """Note the test that the code keeps in a name, if ``value`` is one."""
        self._flags.pop(name, None)
        self._probes.pop(name, None)
        self._signatures.pop(name, None)
        if isinstance(value, (ast.Call, ast.Attribute)) and (
            paths := self._signature(value, names)
        ):
            self._signatures[name] = paths
        if isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Call, ast.Attribute)):
            outcome = self.outcome(value, names)
            if outcome != (self.all, self.all):
                self._flags[name] = outcome
            if any(map(_is_probe, ast.walk(value))):
                self._probes[name] = probed_names(value)

    def kept(self) -> dict[str, Branches]:
        """Return the outcomes that the code keeps in names."""
        return dict(self._flags)

    def after_handler(self, before: Mapping[str, Branches], body: Sequence[ast.stmt]) -> None:
        """Keep outcomes of a ``try`` also where a handler assigns a constant to the name:

        ``is_old = False``.
        """
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if (
                        isinstance(target, ast.Name)
                        and (outcome := before.get(target.id)) is not None
                    ):
                        true, false = outcome
                        self._flags[target.id] = (
                            (self.all, false) if node.value.value else (true, self.all)
                        )

    def probed(self, test: ast.expr) -> frozenset[str]:
        """Return the names for which a test asks, also one that the code keeps in a name."""
        kept = (
            self._probes.get(node.id, frozenset())
            for node in ast.walk(test)
            if isinstance(node, ast.Name)
        )
        return probed_names(test).union(*kept) if self._probes else probed_names(test)

    def outcome(self, test: ast.expr, names: Mapping[str, Sequence[str]]) -> Branches:
        """Return for which releases ``test`` may be true and false; ``names`` are the names that
        are bound."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            true, false = self.outcome(test.operand, names)
            return false, true
        if isinstance(test, ast.BoolOp):
            outcomes = [self.outcome(value, names) for value in test.values]
            if isinstance(test.op, ast.And):
                return _all_of(outcomes)
            false, true = _all_of([(false, true) for true, false in outcomes])
            return true, false
        if isinstance(test, ast.Name) and test.id in self._flags:
            return self._flags[test.id]
        if _is_v1(test, names):
            return self.all, self._v0
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
            return self._parameter(test, names)
        if isinstance(test, ast.Compare):
            return _all_of([self._compared(*pair, names) for pair in pairs(test)])
        if isinstance(test, ast.Call):
            return self._has_attribute(test, names) or self._called(test)
        return self.all, self.all

    def _parameter(self, test: ast.Compare, names: Mapping[str, Sequence[str]]) -> Branches:
        """Judge ``"x" in inspect.signature(f).parameters``."""
        name, paths = text_of(test.left), self._signature(test.comparators[0], names)
        if not paths or not name:
            return self.all, self.all
        true, false = self._asked("keyword", paths, name)
        return (true, false) if isinstance(test.ops[0], ast.In) else (false, true)

    def _signature(self, node: ast.expr, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        """Return of what an expression has the signature; nothing if it has none."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self._signatures:
                return self._signatures[part.id]
            if isinstance(part, ast.Call) and part.args and name_of(part.func) == "signature":
                return paths_of(part.args[0], names)
        return ()

    def _has_attribute(self, call: ast.Call, names: Mapping[str, Sequence[str]]) -> Branches | None:
        """Judge ``hasattr(vllm.x, "name")``."""
        if name_of(call.func) != "hasattr" or len(call.args) != 2:
            return None
        paths, name = paths_of(call.args[0], names), text_of(call.args[1])
        return (
            self._asked("name", tuple(f"{p}.{name}" for p in paths), "") if paths and name else None
        )

    def _compared(
        self,
        left: ast.expr,
        kind: type[ast.cmpop],
        right: ast.expr,
        names: Mapping[str, Sequence[str]],
    ) -> Branches:
        if is_version(right, names):
            kind, left, right = _MIRRORED.get(kind, kind), right, left
        bound = _constant_version(right)
        if bound is None or not is_version(left, names) or kind not in _OPERATORS:
            return self.all, self.all
        return self._split(_OPERATORS[kind], bound)

    def _called(self, call: ast.Call) -> Branches:
        """Judge calls such as ``is_vllm_version_at_least("0.8.5")`` and ``compare_versions("vllm",
        ">=", "0.8.5")``."""
        name, texts = name_of(call.func), [text_of(argument) for argument in call.args]
        if "vllm" not in name.lower() and "vllm" not in texts:
            return self.all, self.all
        bounds = [bound for bound in map(_version, texts) if bound is not None]
        signs = [_OPERATORS[text] for text in texts if text in _OPERATORS]
        signs += [sign for pattern, sign in _COMPARING.items() if pattern.search(name)]
        least = next((word.value for word in call.keywords if word.arg == "min_version"), None)
        if bounds and signs:
            return self._split(signs[0], bounds[0])
        if (bound := _constant_version(least)) is not None:
            return self._split(operator.ge, bound)
        return self.all, self.all

    def _split(self, compare: Callable[[Version, Version], bool], bound: Version) -> Branches:
        true = frozenset(n for n, version in enumerate(self._versions) if compare(version, bound))
        return true, self.all - true


def paths_of(node: ast.expr, names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the paths that a dotted name means; none if it is nothing of vLLM."""
    if isinstance(node, ast.Name):
        return tuple(path for path in names.get(node.id, ()) if path != VERSION)
    if isinstance(node, ast.Attribute):
        return tuple(
            f"{path}.{node.attr}" for path in paths_of(node.value, names) if len(path) < MAX_PATH
        )
    return ()


def pairs(test: ast.Compare) -> Iterator[tuple[ast.expr, type[ast.cmpop], ast.expr]]:
    """Yield the comparisons of which a chain such as ``a <= b < c`` consists."""
    for left, kind, right in zip(
        [test.left, *test.comparators], test.ops, test.comparators, strict=False
    ):
        yield left, type(kind), right


def is_version(node: ast.expr | None, names: Mapping[str, Sequence[str]]) -> bool:
    """Return whether an expression is the version of the installed vLLM."""
    if isinstance(node, ast.Name):
        bound = names.get(node.id, ())
        is_bound = VERSION in bound or "vllm.__version__" in bound
        return is_bound or _VERSION_NAME.fullmatch(node.id) is not None
    if isinstance(node, ast.Attribute):
        owner = node.value
        if node.attr in ("__version__", "__version_tuple__"):
            if not isinstance(owner, ast.Name):
                return False
            return "vllm" in names.get(owner.id, (owner.id,))
        return node.attr in _VERSION_PARTS and is_version(owner, names)
    if isinstance(node, ast.Call) and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant):
            return first.value == "vllm" and "version" in name_of(node.func)
        return name_of(node.func) in _WRAPPERS and is_version(first, names)
    return False


def _is_v1(test: ast.expr, names: Mapping[str, Sequence[str]]) -> bool:
    """Return whether an expression is ``vllm.envs.VLLM_USE_V1``, or a name or a call such as
    ``self._is_vllm_v1()``."""
    if _V1_NAME.fullmatch(name_of(test.func if isinstance(test, ast.Call) else test)):
        return True
    return _V1_VARIABLE in paths_of(test, names)


def _is_probe(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], (ast.In, ast.NotIn))
    return isinstance(node, ast.Call) and name_of(node.func) in ("hasattr", "find_spec")


def probed_names(test: ast.expr) -> frozenset[str]:
    """Return the names for which a test asks: by ``hasattr``, ``in``, or ``find_spec``."""
    asked: list[ast.expr] = []
    for node in ast.walk(test):
        if isinstance(node, ast.Call):
            asked += node.args
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            asked.append(node.left)
    return frozenset(filter(None, map(text_of, asked)))


def _all_of(outcomes: Sequence[Branches]) -> Branches:
    """Return for which releases all of some tests may be true, and any may be false."""
    true, false = zip(*outcomes, strict=True)
    return frozenset.intersection(*true), frozenset.union(*false)


def _constant_version(node: ast.expr | None) -> Version | None:
    if isinstance(node, ast.Attribute) and node.attr in _VERSION_PARTS:
        return _constant_version(node.value)
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return _constant_version(node.args[0])
    if isinstance(node, ast.Tuple):
        parts = [part.value for part in node.elts if isinstance(part, ast.Constant)]
        whole = len(parts) == len(node.elts) and all(isinstance(part, int) for part in parts)
        return _version(".".join(map(str, parts))) if whole else None
    return _version(text_of(node))


def _version(text: str) -> Version | None:
    return version_of(text) if text[:1].isdigit() or text[:2] in ("v0", "v1") else None
