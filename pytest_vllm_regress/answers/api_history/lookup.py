"""Questions about one release: does a dotted name exist, which parameters does a callable have,
which member does a class have.

A path is a dotted name; ``()`` after a class means an instance of it: ``vllm.LLM().llm_engine``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from .definitions import Parameter, Signature, bases_of, is_class, is_function, signature_of
from .store import BRIEF, History, definition_at, definitions_at, member_of

P = ParamSpec("P")
T = TypeVar("T")
MAX_STEPS = 24
"""Limit for aliases, bases and parts of a path that are followed."""
_GENERATED = frozenset({"BaseModel", "Struct", "NamedTuple", "OpenAIBaseModel"})
"""Bases whose subclasses take their fields as arguments."""
_CLOSED = _GENERATED | {
    *("ABC", "object", "TypedDict", "Enum", "IntEnum", "StrEnum", "Protocol", "Generic"),
    *("Exception", "ValueError", "RuntimeError"),
}
"""Bases outside vLLM that add no public member."""
_OF_TORCH = re.compile(
    r"_.*|forward|extra_repr|apply|compile|to|cuda|cpu|float|half|train|eval|requires_grad_|zero_grad"
    r"|(?:add|register|named)_\w+|\w*(?:state|state_dict|parameters?|buffers?|children|modules?)"
)
"""Methods of ``torch.nn.Module``, roughly."""
_STANDARD = frozenset((*dir(dataclasses), *dir(typing), *dir(functools), *dir(contextlib)))
"""Names of the standard library that modules often import."""
_LISTED = ("vllm", "vllm.envs")
"""Modules whose ``__getattr__`` takes names from a table that the history has."""
_TWINS = {
    "vllm.engine.llm_engine.LLMEngine": "vllm.v1.engine.llm_engine.LLMEngine",
    "vllm.engine.async_llm_engine.AsyncLLMEngine": "vllm.v1.engine.async_llm.AsyncLLM",
    "vllm.distributed.kv_transfer.kv_connector.base.KVConnectorBase": "vllm.distributed.kv_transfer.kv_connector.v1.base.KVConnectorBase_V1",
}
"""Classes of the V0 engine, and what the same release makes of them with V1. Where a release has
both, an instance may be either."""
_RETURNS = {
    "get_current_vllm_config": "vllm.config.VllmConfig",
    "get_forward_context": "vllm.forward_context.ForwardContext",
}
"""Module-level functions that return an instance of a class."""
_MAKERS = ("from_", "create", "build")
"""How the names of class methods begin that return an instance of their class."""


@dataclass(frozen=True)
class Symbol:
    """A symbol in a release. ``name`` is empty for a module.

    ``instance``: an instance of the class, or a method of one.
    """

    module: str
    name: str = ""
    definition: str = ""
    instance: bool = False

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


class Missing(Exception):
    """A name that a release does not have: ``owner`` exists, ``name`` in it does not."""

    def __init__(self, owner: Symbol | None, name: str) -> None:
        super().__init__(name)
        self.owner, self.name = owner, name


class Unknown(Exception):
    """The sources do not say: a name that is made at run time, or a class that is not vLLM's."""


class Lost(Unknown):
    """A method that a class of vLLM had in another release. As far as is known, its bases outside of
    vLLM, ``torch.nn.Module``, do not have it."""

    def __init__(self, owner: Symbol, name: str) -> None:
        super().__init__(name)
        self.owner, self.name = owner, name


def _remembered(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` with its results kept, also those that are a ``Missing`` or ``Unknown``."""

    outcomes: dict[object, T | Missing | Unknown] = {}

    def remembered(*args: P.args, **_: P.kwargs) -> T:
        if args not in outcomes:
            try:
                outcomes[args] = function(*args, **_)
            except (Missing, Unknown) as error:
                outcomes[args] = error
        result = outcomes[args]
        if isinstance(result, (Missing, Unknown)):
            raise result.with_traceback(None)
        return result

    return remembered


class Lookup:
    """The API of one release."""

    def __init__(self, history: History, release: int) -> None:
        self._history, self._release = history, release
        self._open: set[tuple[str, str]] = set()
        """Attributes whose class is being looked up: one may be made of itself."""
        # A project names the same things again and again, and their owners even more often.
        self.find = _remembered(self._find)
        self.member = _remembered(self._member)
        self.signature = _remembered(self._signature)
        self._symbols = functools.cache(self._read_symbols)
        self._classes_in = functools.cache(self._read_classes_in)
        self._below = functools.cache(self._read_below)
        self._ancestors = functools.cache(self._read_ancestors)

    def has_module(self, module: str) -> bool:
        return self.table("modules", module) is not None

    def table(self, section: str, name: str) -> str | None:
        """Return the text of a name in a section; None if the release does not have it."""
        return self._history.entry(section, name, self._release)

    def _definition(self, module: str, name: str) -> str | None:
        return self._history.definition(module, name, self._release)

    def _read_symbols(self, module: str) -> dict[str, str]:
        return definitions_at(self._history.symbols(module), self._release)

    def _find(self, path: str) -> Symbol:
        """Return what a path means.

        Raises ``Missing`` at the first part that does not exist, and ``Unknown``.
        """
        owner, _, part = path.rpartition(".")
        symbol = self._step(self.find(owner) if owner else Symbol(""), part.removesuffix("()"))
        return self._called(symbol) if part.endswith("()") else symbol

    def _step(self, symbol: Symbol, name: str) -> Symbol:
        if not symbol.module:
            if not self.has_module(name):
                raise Missing(None, name)
            return Symbol(name)
        if not symbol.name:
            return self._in_module(symbol, name)
        return self.member(_class(symbol), name)

    def _in_module(self, module: Symbol, name: str, depth: int = MAX_STEPS) -> Symbol:
        definition = self._definition(module.module, name)
        if definition is None or definition.startswith("?"):
            if self.has_module(f"{module.module}.{name}"):
                return Symbol(f"{module.module}.{name}")
            makes_names = self._definition(module.module, "__getattr__")
            if name.startswith("__") or (makes_names and module.module not in _LISTED):
                raise Unknown
            if self._may_be_left_out(module.module, name):
                raise Unknown
            raise Missing(module, name)
        if definition.startswith("< ") and depth:
            symbol = self._alias(definition, depth)
            if not symbol.name and self.has_module(f"{module.module}.{name}"):
                # Another module has this name, too, for example by "import *": in an import, the
                # name before a dot means the module that is there.
                return Symbol(f"{module.module}.{name}")
            return symbol
        return Symbol(module.module, name, definition)

    def _may_be_left_out(self, module: str, name: str) -> bool:
        """Return whether a name may exist of which the history does not tell: a constant or a
        private name in some packages, or what is imported from the standard library before a
        module has one of its own."""
        timeline = self._history.symbols(module).get(name, [])
        if BRIEF.fullmatch(module):
            if not timeline:
                return f"{module}.{name}" not in self._history.table("modules")
            kinds = tuple(filter(None, timeline[1::2]))
            is_constant = any(kind.startswith(("=", f"< {module}:")) for kind in kinds)
            return name.startswith("_") or is_constant
        return name in _STANDARD and bool(timeline) and timeline[0] > self._release

    def _alias(self, definition: str, depth: int) -> Symbol:
        target, _, name = definition.removeprefix("< ").partition(":")
        if not self.has_module(target):
            raise Unknown  # a compiled or a vendored module
        if not name:
            return Symbol(target)
        try:
            return self._in_module(Symbol(target), name, depth - 1)
        except Missing:
            raise Unknown from None

    def _called(self, symbol: Symbol) -> Symbol:
        owner, _, name = symbol.name.rpartition(".")
        if owner and "@classmethod" in symbol.definition and name.startswith(_MAKERS):
            definition = self._definition(symbol.module, owner) or ""
            symbol = Symbol(symbol.module, owner, definition)
        elif kind := _RETURNS.get(symbol.name):
            symbol = self.find(kind)
        return replace(_class(symbol), instance=True)

    def _member(self, owner: Symbol, name: str) -> Symbol:
        """Return a member of a class or of an instance of it; for an attribute with a known class,
        an instance of that."""
        classes, is_open = self._ancestors(owner)
        for ancestor in classes:
            symbol = self._typed(ancestor.module, f"{ancestor.name}.{name}")
            if symbol is not None:
                return replace(symbol, instance=symbol.instance or owner.instance)
        makes_names = any(self._definition(c.module, f"{c.name}.__getattr__") for c in classes)
        if owner.instance and (twin := self._twin(owner)):
            self.member(twin, name)
            raise Unknown
        in_subclass = owner.instance and self._in_subclass(owner, name)
        if is_open and not (makes_names or in_subclass) and self._is_lost(classes, name):
            raise Lost(owner, name)
        is_protocol = owner.instance and any("Protocol" in bases_of(c.definition) for c in classes)
        is_left_out = any(BRIEF.fullmatch(c.module) for c in classes) and (
            name.startswith("_") or not any(self._declares(c, name) for c in classes)
        )
        if (
            is_left_out
            or is_open
            or makes_names
            or name.startswith("__")
            or in_subclass
            or is_protocol
        ):
            raise Unknown  # what is annotated with a protocol is an implementation, with more
        raise Missing(owner, name)

    def has_lost(self, owner: Symbol, name: str) -> bool:
        """Return whether a class outside of ``BRIEF`` that ``owner`` inherits from had a method, and
        has it no longer: also of a private one, and also below classes of which the history does
        not have those."""
        classes, is_open = self._ancestors(owner)
        return not is_open and any(
            not BRIEF.fullmatch(c.module)
            and bool(self._history.symbols(c.module).get(f"{c.name}.{name}"))
            for c in classes
        )

    def _is_lost(self, classes: list[Symbol], name: str) -> bool:
        """Return whether one of some classes, of which all bases outside of vLLM are
        ``torch.nn.Module``, had a method that this does not have."""
        own = {c.name for c in classes}
        bases = {base.rpartition(".")[2] for c in classes for base in bases_of(c.definition)} - own
        methods = (self._history.symbols(c.module).get(f"{c.name}.{name}", []) for c in classes)
        return (
            bases <= _CLOSED | {"Module"}
            and not _OF_TORCH.fullmatch(name)
            and any(
                is_function(text) for timeline in methods for text in filter(None, timeline[1::2])
            )
        )

    def _declares(self, owner: Symbol, name: str) -> bool:
        """Return whether a class has a method or, if it is a dataclass, a field of this name in some
        release, so that it is no attribute that a method assigns. A property may have been one."""
        timeline = self._history.symbols(owner.module).get(f"{owner.name}.{name}", [])
        is_dataclass = "@dataclass" in owner.definition
        return any(
            (is_function(definition) and (is_dataclass or "property" not in definition))
            or (is_dataclass and definition.startswith(":"))
            for definition in filter(None, timeline[1::2])
        )

    def _twin(self, owner: Symbol) -> Symbol | None:
        """Return the classes that an object of a class of the V0 engine may have instead."""
        try:
            return replace(self.find(_TWINS[owner.path]), instance=True)
        except (KeyError, Missing, Unknown):
            return None

    def _in_subclass(self, owner: Symbol, name: str) -> bool:
        """Return whether a class below ``owner`` in its package has the member: what is annotated
        with a class may be one of these."""
        below = self._below(member_of(owner.module), owner.name)
        return any(self._definition(module, f"{symbol}.{name}") for module, symbol in below)

    def _read_below(self, member: str, name: str) -> list[tuple[str, str]]:
        """Return the classes in a package, by module and name, that inherit from one of that name."""
        classes = self._classes_in(member)
        below = {name}
        while (
            more := {
                symbol for (_, symbol), bases in classes.items() if not below.isdisjoint(bases)
            }
            - below
        ):
            below |= more
        return [key for key in classes if key[1] in below and key[1] != name]

    def _read_classes_in(self, member: str) -> dict[tuple[str, str], list[str]]:
        """Return the classes in a package, with the last names of their bases."""
        classes = self._history.classes_in(member)
        definitions = ((key, definition_at(classes[key], self._release)) for key in classes)
        return {
            key: [base.rpartition(".")[2] for base in bases_of(definition)]
            for key, definition in definitions
            if definition is not None and is_class(definition)
        }

    def _typed(self, module: str, name: str) -> Symbol | None:
        """Return a member, or an instance of its class if its definition names one; None if there
        is no such member."""
        definition, key = self._definition(module, name), (module, name)
        if definition is None:
            return None
        member = Symbol(module, name, definition)
        if not definition.startswith((".: ", ": ")) or key in self._open:
            return member
        kind = definition.partition(": ")[2].partition(" = ")[0]
        first, _, attribute = kind.removesuffix(" | None").strip("'\"").partition(".")
        if not first.isidentifier() or (attribute and not attribute.isidentifier()):
            return member
        self._open.add(key)
        try:
            symbol = replace(self._class_in(module, first), instance=True)
            return _class(self.member(symbol, attribute)) if attribute else symbol
        except (Missing, Unknown):
            return member
        finally:
            self._open.remove(key)

    def _class_in(self, module: str, name: str) -> Symbol:
        """Return the class that a name means in a module, also where it is imported for type
        checkers only."""
        definition = self._definition(module, name) or ""
        if definition.startswith("?< "):
            return _class(self._alias(definition[1:], MAX_STEPS))
        return _class(self._in_module(Symbol(module), name))

    def _read_ancestors(self, owner: Symbol) -> tuple[list[Symbol], bool]:
        """Return a class with its bases in vLLM, in the order of inheritance, and whether one of
        them is not in vLLM."""
        classes: dict[str, Symbol] = {}
        is_open, todo = False, [owner]
        while todo and len(classes) < MAX_STEPS:
            symbol = todo.pop(0)
            if symbol.path in classes:
                continue
            classes[symbol.path] = symbol
            bases = []
            for base in bases_of(symbol.definition):
                try:
                    bases.append(self._base(symbol.module, base))
                except (Missing, Unknown):
                    is_open = is_open or base.rpartition(".")[2] not in _CLOSED
            todo = [*bases, *todo]
        return list(classes.values()), is_open

    def _base(self, module: str, base: str) -> Symbol:
        first, *rest = base.split(".")
        if not rest:
            return self._class_in(module, first)
        return functools.reduce(self._step, rest, self._in_module(Symbol(module), first))

    def _signature(self, symbol: Symbol) -> Signature:
        """Return the parameters for a call of a function, a bound method or a class.

        Raises ``Unknown``.
        """
        if is_class(symbol.definition) and not symbol.instance:
            return self._constructor(symbol)
        definition = symbol.definition
        signature = signature_of(definition)
        if signature is None or "@property" in definition or "@overload" in definition:
            raise Unknown
        owner, _, method = symbol.name.rpartition(".")
        twin = self._twin(replace(symbol, name=owner)) if symbol.instance else None
        if twin and self.member(twin, method).definition != definition:
            raise Unknown
        if "@classmethod" in definition or (symbol.instance and "@staticmethod" not in definition):
            signature = signature.without_first()
        return self._forwarded(symbol.module, signature)

    def _constructor(self, owner: Symbol) -> Signature:
        classes, is_open = self._ancestors(owner)
        for ancestor in classes:
            definition = self._definition(ancestor.module, f"{ancestor.name}.__init__") or ""
            if (signature := signature_of(definition)) is not None:
                return self._forwarded(ancestor.module, signature.without_first())
        definitions = [ancestor.definition for ancestor in classes]
        bases = {base.rpartition(".")[2] for text in definitions for base in bases_of(text)}
        if "TypedDict" in bases:  # a call makes a dict, of any keywords
            raise Unknown
        is_dataclass = any("@dataclass" in text for text in definitions)
        if _GENERATED.isdisjoint(bases) and (is_open or not is_dataclass):
            raise Unknown
        fields: dict[str, str] = {}
        for ancestor in reversed(classes):
            fields |= self._fields(ancestor)
        return Signature(tuple(Parameter(name, "either", value) for name, value in fields.items()))

    def _fields(self, owner: Symbol) -> dict[str, str]:
        """Return the fields of a class.

        Which of them are required is left open, so each has a default.
        """
        members = (
            (name.removeprefix(f"{owner.name}."), definition)
            for name, definition in self._symbols(owner.module).items()
            if name.startswith(f"{owner.name}.")
        )
        return {
            field: definition.partition(" = ")[2] or "..."
            for field, definition in members
            if "." not in field
            and definition.startswith(": ")
            and not definition.startswith(": ClassVar")
        }

    def _forwarded(self, module: str, signature: Signature) -> Signature:
        """Return the signature with the parameters of the callable to which it passes its
        ``**kwargs``."""
        if not signature.forwards:
            return signature
        try:
            target = self._constructor(self._class_in(module, signature.forwards))
        except (Missing, Unknown):
            return replace(signature, forwards="")
        own = {p.name: p for p in signature.parameters if p.kind != "kwargs"}
        passed = (
            replace(parameter, kind="keyword", default=parameter.default or "...")
            for name, parameter in target.names().items()
            if name not in own
        )
        rest = (parameter for parameter in target.parameters if parameter.kind == "kwargs")
        return Signature((*own.values(), *passed, *rest))


def _class(symbol: Symbol) -> Symbol:
    """Return the symbol if it is a class or an instance of one. Raises ``Unknown``."""
    if not is_class(symbol.definition):
        raise Unknown
    return symbol
