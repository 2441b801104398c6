"""What names and expressions mean at a place in Python source: something of vLLM, its version, or
the keywords in a dict."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..api_history.definitions import last_name, text_of, walk
from .blocks import Function, names_of, returned
from .use import Place, Use

Releases = frozenset[int]
Paths = tuple[str, ...]
"""Paths of which the first that exists in a release is meant."""
Names = dict[str, Paths]
"""What local names mean. In methods "." is what their instance is, and ".x" its attribute ``x``."""
Keys = dict[str, tuple[int, Releases]]
"""Keys of a dict, with their lines and the releases for which they are set."""
MAX_PATH = 300
MAX_ALTERNATIVES = 8
VERSION = "@version"
"""What a name is bound to that holds the version of vLLM."""
PART = "@part "
"""What a name is bound to that holds one number of the version; its index from 0 follows."""
DISTRIBUTION = "@distribution"
"""What a name is bound to that holds the name of the package, "vllm"."""
VERSION_OF = "@version of"
"""What the name of a function is bound to that returns the version of a package."""
ARGUMENTS = "@arguments"
"""What a name is bound to that holds the arguments which a parser has read."""
_READS_VERSION = re.compile(r"(?i)version|distribution")
_VERSION_NAME = re.compile(r"(?i)_*(?:(?:get|installed|current)_)*vllm_*(?:base_*)?ver(?:sion)?")
VERSION_PARTS = ("base_version", "release", "public", "version")
_WRAPPERS = ("Version", "parse", "parse_version", "str", "StrictVersion", "LooseVersion")


def key_of(node: ast.AST | None) -> str:
    """Return the name under which the code stores a value: "x", "module.x", ".x" for an attribute of its
    instance, "f()" for what a function returns; empty for others."""
    match node:
        case ast.Name("self" | "cls"):
            return "."
        case ast.Name(name):
            return name
        case ast.Attribute(owner, name):
            key = key_of(owner)
            return f"{key.rstrip('.')}.{name}" if key else ""
        case ast.Call(function):
            key = key_of(function)
            return f"{key}()" if key else ""
    return ""


def resolve(node: ast.expr | None, names: Names) -> Paths:
    """Return the paths that an expression means; none if it is nothing of vLLM."""
    match node:
        case ast.Name("self"):
            return names.get(".", ())
        case ast.Call(ast.Name("super")):
            return names.get("super()", ())
        case ast.Name(name):
            return _paths(name, names)
        case ast.Await(value):
            return resolve(value, names)
        case ast.Attribute(ast.Name("self"), name) if f".{name}" in names:
            return _paths(f".{name}", names)
        case ast.Attribute(owner, name):
            step = f".{name}"
        case ast.Call(owner):
            step = "()"
        case _:
            return ()
    return tuple(f"{path}{step}" for path in resolve(owner, names) if len(path) < MAX_PATH)


def _paths(name: str, names: Names) -> Paths:
    return tuple(path for path in names.get(name, ()) if path[:1] != "@")


def is_version(node: ast.expr | None, names: Names) -> bool:
    """Return whether an expression is the version of the installed vLLM."""
    match node:
        case ast.Name(name):
            is_bound = not {VERSION, "vllm.__version__"}.isdisjoint(names.get(name, ()))
            return is_bound or _VERSION_NAME.fullmatch(name) is not None
        case ast.Attribute(ast.Name(owner), "__version__" | "__version_tuple__"):
            return "vllm" in names.get(owner, (owner,))
        case ast.Attribute(value, name):
            is_bound = VERSION in names.get(key_of(node), ())
            is_named = _VERSION_NAME.fullmatch(name) is not None
            return is_bound or is_named or (name in VERSION_PARTS and is_version(value, names))
        case ast.Subscript(value, ast.Slice(None)) | ast.Call(ast.Attribute(value, "split")):
            return is_version(value, names)
        case ast.Tuple(parts):
            numbers = [part_of_version(part, names) for part in parts]
            return bool(parts) and numbers == [*range(len(parts))]
        case ast.Call(function, []) if _VERSION_NAME.fullmatch(last_name(function)):
            return True
        case ast.Call(ast.Name(function), []) if VERSION in names.get(f"{function}()", ()):
            return True
        case ast.Call(function, [first, *_]):
            name = last_name(function)
            returns_version = "version" in name or VERSION_OF in names.get(name, ())
            of_vllm = returns_version and is_distribution(first, names)
            return of_vllm or (name in _WRAPPERS and is_version(first, names))
    return False


def part_of_version(node: ast.expr, names: Names) -> int | None:
    """Return which number of vLLM's version an expression is; None if it is none."""
    match node:
        case ast.Name(name):
            parts = [path for path in names.get(name, ()) if path.startswith(PART)]
            return int(parts[0].removeprefix(PART)) if parts else None
        case ast.Call(ast.Name("int"), [value]):
            return part_of_version(value, names)
        case ast.Attribute(value, "major" | "minor" | "micro" as name) if is_version(value, names):
            return ("major", "minor", "micro").index(name)
        case ast.Subscript(value, ast.Constant(int(number))) if is_version(value, names):
            return number if 0 <= number <= 2 else None
    return None


def is_distribution(node: ast.expr | None, names: Names) -> bool:
    """Return whether an expression is the name of the package: "vllm"."""
    name = node.id if isinstance(node, ast.Name) else ""
    return text_of(node) == "vllm" or DISTRIBUTION in names.get(name, ())


def returns_version_of_argument(function: Function) -> bool:
    """Return whether a function returns the version of the package that its argument names."""
    parameters = {argument.arg for argument in function.args.args}
    return any(
        isinstance(node, ast.Call)
        and _READS_VERSION.search(last_name(node.func)) is not None
        and any(isinstance(a, ast.Name) and a.id in parameters for a in node.args[:1])
        for value in returned(function)
        for node in walk(value)
    )


def keys_of(node: ast.expr | None) -> dict[str, int] | None:
    """Return the keys of a dict that is written out, with their lines."""
    match node:
        case ast.Dict(keys):
            constants = [key for key in keys if isinstance(key, ast.Constant)]
            return {key.value: key.lineno for key in constants if isinstance(key.value, str)}
        case ast.Call(ast.Name("dict"), _, keywords):
            return {word.arg: word.value.lineno for word in keywords if word.arg is not None}
    return None


def merged(one: Names, other: Names) -> Names:
    """Return what names mean after one of two branches."""
    return {
        name: tuple(dict.fromkeys((*one.get(name, ()), *other.get(name, ()))))[:MAX_ALTERNATIVES]
        for name in {**one, **other}
    }


@dataclass(frozen=True)
class Module:
    """What is being read: a module, or a cell of a notebook; and the uses that were found in it."""

    file: str
    tree: ast.Module
    cell: int
    text: str
    uses: list[Use] = field(default_factory=list)
    starred: set[str] = field(default_factory=set)
    """Names that are bound by ``from vllm.x import *``."""

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        return list(walk(self.tree))

    @cached_property
    def lines(self) -> Sequence[str]:
        """The lines of its text in lower case."""
        return self.text.lower().split("\n")

    @cached_property
    def fakes(self) -> bool:
        """Whether it makes modules, which names in its strings may mean: a test with a fake vLLM."""
        return any(
            (isinstance(node, ast.Attribute) and node.attr in ("modules", "ModuleType"))
            or (isinstance(node, ast.Constant) and node.value == "sys.modules")
            for node in self.nodes
        )

    @cached_property
    def undefined(self) -> frozenset[str]:
        """Public names that are read, and that neither the source nor Python binds."""
        bound, loaded = self.name_counts
        inner = {getattr(node, "arg", getattr(node, "name", None)) for node in self.nodes}
        names = (name for name in loaded if name[:1] != "_" and not bound[name])
        return frozenset(names).difference(dir(builtins), filter(None, inner))

    @cached_property
    def name_counts(self) -> tuple[Counter[str], Counter[str]]:
        return names_of(self.nodes)


@dataclass(frozen=True)
class Scope:
    """Where code stands. Statements bind names in the dicts; code of its own scope has copies.

    ``names``: what names mean; ``keys``: the keys of dicts in names, and of those that functions
    return, as "f()"; ``own``: what methods learn of their instance, as in ``names``; ``own_keys``:
    the keys of dicts in these, and of those that methods return. ``fields``: those of instances of
    the file's classes, and of the arguments that it parses, as "". ``within``: classes and functions
    around it. ``spend``: limits the work.
    ``certain``: releases for which the module cannot be imported without running it; ``tested``: a
    test of the release decides that.
    ``live``: releases for which the code runs; ``caught``: failures that are handled; ``probed``:
    names for which a test asked; ``instead_of`` and ``perhaps``: see ``Use``. ``returns``: what the function around
    it returns, with the releases. ``loses``: where a failure is handled, nothing comes in place of
    what failed. ``dry``: only bindings are of interest, not uses; ``speaks``:
    strings are for people.
    """

    module: Module
    names: Names
    keys: dict[str, Keys]
    live: Releases
    spend: Callable[[int], None]
    fields: dict[str, Keys] = field(default_factory=dict)
    own: Names = field(default_factory=dict)
    own_keys: dict[str, Keys] = field(default_factory=dict)
    within: tuple[ast.AST, ...] = ()
    certain: Releases = frozenset()
    tested: bool = False
    caught: frozenset[str] = frozenset()
    probed: frozenset[str] = frozenset()
    instead_of: tuple[Use, ...] = ()
    perhaps: str = ""
    returns: list[tuple[ast.expr | None, Releases]] = field(default_factory=list)
    loses: bool = False
    dry: bool = False
    speaks: bool = False

    @property
    def around(self) -> ast.AST | None:
        """The innermost enclosing class or function."""
        return self.within[-1] if self.within else None

    def only_for(self, releases: Releases) -> Scope:
        """Return the scope of what runs for these releases only."""
        return self if self.live <= releases else replace(self, live=self.live & releases)

    def doubting(self, why: str) -> Scope:
        """Return the scope of what runs after a test that is not understood, if there is one."""
        return replace(self, perhaps=self.perhaps or why) if why else self

    def maybe(self) -> Scope:
        """Return the scope of a block that may be left out."""
        return replace(self, certain=frozenset()) if self.certain else self

    def nested(self, **changes: Any) -> Scope:
        """Return the scope of a function or class in this one: it sees the names, and binds its own."""
        self.spend(len(self.names) + len(self.keys))
        names, keys = dict(self.names), dict(self.keys)
        return replace(self, **{"names": names, "keys": keys, "certain": frozenset(), **changes})

    def place(self, node: ast.AST) -> Place:
        return Place(self.module.file, getattr(node, "lineno", 1), self.module.cell)

    def resolve(self, node: ast.expr | None) -> Paths:
        return resolve(node, self.names)

    def annotated(self, annotation: ast.expr | None) -> Paths:
        """Return an instance of the class of vLLM in an annotation."""
        match annotation:
            case None:
                return ()
            case ast.Subscript(kind, inner) if last_name(kind) == "Optional":
                return self.annotated(inner)
            case ast.BinOp(left, _, ast.Constant()):
                return self.annotated(left)
        named = _paths(text_of(annotation), self.names)
        return tuple(f"{path}()" for path in named or self.resolve(annotation))

    def bind(self, name: str, paths: Paths) -> None:
        if paths:
            self.names[name] = paths
        else:
            self.names.pop(name, None)

    def unbind(self, target: ast.expr) -> None:
        for node in walk(target):
            if isinstance(node, ast.Name):
                self.names.pop(node.id, None)

    def define_argument(self, call: ast.Call) -> None:
        """Note an option that the file's own parser takes."""
        if last_name(call.func) == "add_argument":
            named = [text_of(word.value) for word in call.keywords if word.arg == "dest"]
            names = named or [text for text in map(text_of, call.args) if text[:2] == "--"]
            for name in names[:1]:
                key = name.lstrip("-").replace("-", "_")
                self.fields.setdefault("", {})[key] = call.lineno, self.live

    def change_keys(self, call: ast.Call) -> None:
        """Follow ``kwargs.update(...)``, ``kwargs.setdefault(...)`` and ``kwargs.pop(...)``."""
        match call.func:
            case ast.Attribute(ast.Name(name), method) if name in self.keys:
                keys = self.keys[name]
            case _:
                return
        first = call.args[0] if call.args else None
        if method == "update":
            words = {w.arg: (w.value.lineno, self.live) for w in call.keywords if w.arg}
            self.keys[name] = {**keys, **self.passed(first), **words}
        elif method == "setdefault" and (key := text_of(first)):
            self.keys[name] = {key: (call.lineno, self.live), **keys}
        elif method == "pop":
            self.drop_key(name, first)

    def drop_key(self, name: str, key: ast.expr | None) -> None:
        """Forget a key of a dict; all of them if it is not known which one is removed."""
        if name in self.keys:
            kept = self.keys[name].items() if isinstance(key, ast.Constant) else ()
            self.keys[name] = {other: line for other, line in kept if other != text_of(key)}

    def passed(self, node: ast.expr | None) -> Keys:
        """Return the keywords that ``**node`` passes, with their lines and the releases for which
        they are set."""
        passed: Keys = {}
        parts: list[ast.expr] = []
        match node:
            case ast.Name(name):
                passed = self.keys.get(name, {})
            case ast.Attribute(ast.Name("self"), name) | ast.Call(
                ast.Attribute(ast.Name("self"), name)
            ):
                passed = self.own_keys.get(name, {})
            case ast.Attribute(ast.Name(name), "__dict__") | ast.Call(
                ast.Name("vars" | "asdict") | ast.Attribute(attr="vars" | "asdict"),
                [ast.Name(name)],
            ):
                passed = self.keys.get(f"{name}.__dict__", {})
            case ast.Call(ast.Name(name)) if name != "dict":
                passed = self.keys.get(f"{name}()", {})
            case ast.BinOp(left, ast.BitOr(), right):
                parts = [left, right]
            case ast.Dict(keys, values):
                parts = [v for key, v in zip(keys, values, strict=True) if key is None]
            case ast.Call(ast.Name("dict"), _, keywords):
                parts = [word.value for word in keywords if word.arg is None]
        for part in parts:
            passed |= self.passed(part)
        passed = {**passed, **{k: (line, self.live) for k, line in (keys_of(node) or {}).items()}}
        self.spend(len(passed))
        return passed

    def keep_fields(self, name: str, of: ast.expr | None) -> None:
        """Remember the attributes of an instance of one of the file's own classes, or of parsed
        arguments, which ``vars`` and ``asdict`` return as a dict."""
        match of:
            case ast.Name(kind) | ast.Call(ast.Name(kind)):
                keys = self.fields.get(kind)
            case ast.Call(ast.Attribute(_, "parse_args" | "parse_known_args")):
                keys = self.fields.get("")
            case _:
                keys = None
        self.keys.pop(f"{name}.__dict__", None)
        if keys:
            self.keys[f"{name}.__dict__"] = keys

    def keep_keys(self, name: str, value: ast.expr | None) -> None:
        """Remember the keys of a dict under the name."""
        self.keys.pop(name, None)
        if (keys := self.passed(value)) or keys_of(value) is not None:
            self.keys[name] = keys
