"""Questions about one release: does a dotted name exist, which parameters does a callable have,
which member does a class have.

A path is a dotted name; ``()`` after a class means an instance of it: ``vllm.LLM().llm_engine``.
"""

from __future__ import annotations

import dataclasses
import functools

from .definitions import Parameter, Signature, bases_of, is_class, is_function, signature_of
from .store import History
from .timeline import definition_at

MAX_STEPS = 24
"""Limit for aliases, bases and parts of a path that are followed."""
_GENERATED = ("BaseModel", "Struct", "NamedTuple", "TypedDict", "OpenAIBaseModel")
"""Bases whose subclasses take their fields as arguments."""
_LISTED = ("vllm", "vllm.envs")
"""Modules whose ``__getattr__`` takes names from a table that the history has."""
_MAKERS = ("from_", "create", "build")


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A symbol in a release. ``name`` is empty for a module.

    ``instance``: an instance of the class, or a method of one.
    """

    module: str
    name: str
    definition: str
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


class Lookup:
    """The API of one release."""

    def __init__(self, history: History, release: int) -> None:
        self._history, self._release = history, release
        self._open: set[tuple[str, str]] = (
            set()
        )  # attributes whose class is being looked up: one may be made of itself
        self.find = functools.cache(self._find)
        self.signature = functools.cache(self._signature)

    def has_module(self, module: str) -> bool:
        timeline = self._history.modules().get(module)
        return timeline is not None and definition_at(timeline, self._release) is not None

    def table(self, section: str, name: str) -> str | None:
        """Return the text of a name in a section; None if the release does not have it."""
        timeline = self._history.table(section).get(name)
        return definition_at(timeline, self._release) if timeline is not None else None

    def _find(self, path: str) -> Symbol:
        """Return what a path means.

        Raises ``Missing`` at the first part that does not exist, and ``Unknown``.
        """
        parts = path.split(".")
        symbol = Symbol("", "", "")
        for number, part in enumerate(parts):
            name = part.removesuffix("()")
            symbol = self._module(name) if not number else self._step(symbol, name)
            if part.endswith("()"):
                symbol = self._called(symbol)
        return symbol

    def _module(self, name: str) -> Symbol:
        if not self.has_module(name):
            raise Missing(None, name)
        return Symbol(name, "", "")

    def _step(self, symbol: Symbol, name: str) -> Symbol:
        if not symbol.name:
            return self._in_module(symbol, name)
        if is_class(symbol.definition):
            return self.member(symbol, name)
        raise Unknown

    def _in_module(self, module: Symbol, name: str, depth: int = MAX_STEPS) -> Symbol:
        definition = self._definition(module.module, name)
        if definition is None or definition.startswith("?"):
            if self.has_module(f"{module.module}.{name}"):
                return Symbol(f"{module.module}.{name}", "", "")
            dynamic = (
                self._definition(module.module, "__getattr__") is not None
                and module.module not in _LISTED
            )
            if name.startswith("__") or dynamic:
                raise Unknown
            raise Missing(module, name)
        if definition.startswith("< ") and depth:
            return self._alias(definition, depth)
        return Symbol(module.module, name, definition)

    def _alias(self, definition: str, depth: int) -> Symbol:
        target, _, name = definition.removeprefix("< ").partition(":")
        if not self.has_module(target):
            raise Unknown  # a compiled or a vendored module
        if not name:
            return Symbol(target, "", "")
        try:
            return self._in_module(Symbol(target, "", ""), name, depth - 1)
        except Missing:
            raise Unknown from None

    def _called(self, symbol: Symbol) -> Symbol:
        if is_class(symbol.definition):
            return dataclasses.replace(symbol, instance=True)
        owner, _, name = symbol.name.rpartition(".")
        if owner and "@classmethod" in symbol.definition and name.startswith(_MAKERS):
            made = self._in_class(symbol.module, owner)
            return dataclasses.replace(made, instance=True)
        raise Unknown

    def member(self, owner: Symbol, name: str) -> Symbol:
        """Return a member of a class or of an instance of it; for an attribute with a known class,
        an instance of that."""
        classes, is_open = self._ancestors(owner)
        for ancestor in classes:
            definition = self._definition(ancestor.module, f"{ancestor.name}.{name}")
            if definition is not None:
                symbol = self._typed(ancestor, f"{ancestor.name}.{name}", definition)
                return dataclasses.replace(symbol, instance=symbol.instance or owner.instance)
        dynamic = any(
            self._definition(c.module, f"{c.name}.__getattr__") is not None for c in classes
        )
        if (
            is_open
            or dynamic
            or name.startswith("__")
            or (owner.instance and self._in_subclass(owner, name))
        ):
            raise Unknown
        raise Missing(owner, name)

    def _in_subclass(self, owner: Symbol, name: str) -> bool:
        """Return whether a class below ``owner`` in its module has the member: what is annotated
        with a class may be one of these."""
        symbols = self._history.symbols(owner.module)
        below, grown = {owner.name}, True
        classes = {
            symbol: bases_of(definition)
            for symbol, timeline in symbols.items()
            if "." not in symbol
            and is_class(definition := definition_at(timeline, self._release) or "")
        }
        while grown:
            more = {symbol for symbol, bases in classes.items() if below & set(bases)} - below
            below, grown = below | more, bool(more)
        return any(
            self._definition(owner.module, f"{symbol}.{name}") is not None for symbol in below
        )

    def _typed(self, owner: Symbol, name: str, definition: str) -> Symbol:
        """Return the member, or an instance of its class if its definition names one."""
        if definition.startswith((".: ", ": ")):
            kind = (
                definition.partition(": ")[2]
                .partition(" = ")[0]
                .removesuffix(" | None")
                .strip("'\"")
            )
            first, _, attribute = kind.partition(".")
            key = (owner.module, name)
            if (
                key not in self._open
                and first.isidentifier()
                and (not attribute or attribute.isidentifier())
            ):
                self._open.add(key)
                try:
                    symbol = dataclasses.replace(self._class_in(owner.module, first), instance=True)
                    symbol = self._attribute(symbol, attribute) if attribute else symbol
                except (Missing, Unknown):
                    return Symbol(owner.module, name, definition)
                finally:
                    self._open.remove(key)
                return symbol
        return Symbol(owner.module, name, definition)

    def _attribute(self, owner: Symbol, name: str) -> Symbol:
        """Return an instance of the class of an attribute.

        Raises ``Unknown`` if the class is not known.
        """
        symbol = self.member(owner, name)
        if not is_class(symbol.definition):
            raise Unknown
        return symbol

    def _class_in(self, module: str, name: str) -> Symbol:
        """Return the class that a name means in a module, also where it is imported for type
        checkers only."""
        definition = self._definition(module, name)
        if definition is not None and definition.startswith("?< "):
            symbol = self._alias(definition[1:], MAX_STEPS)
        else:
            symbol = self._in_module(Symbol(module, "", ""), name)
        if not is_class(symbol.definition):
            raise Unknown
        return symbol

    def _in_class(self, module: str, name: str) -> Symbol:
        definition = self._definition(module, name)
        if definition is None or not is_class(definition):
            raise Unknown
        return Symbol(module, name, definition)

    def _ancestors(self, owner: Symbol) -> tuple[list[Symbol], bool]:
        """Return a class with its bases in vLLM, in the order of inheritance, and whether one of
        them is not in vLLM."""
        classes: list[Symbol] = []
        is_open, todo = False, [owner]
        while todo and len(classes) < MAX_STEPS:
            symbol = todo.pop(0)
            if any((symbol.module, symbol.name) == (known.module, known.name) for known in classes):
                continue
            classes.append(symbol)
            bases = []
            for base in bases_of(symbol.definition):
                try:
                    bases.append(self._base(symbol, base))
                except (Missing, Unknown):
                    is_open = is_open or base.rpartition(".")[2] not in _CLOSED
            todo = [*bases, *todo]
        return classes, is_open

    def _base(self, symbol: Symbol, base: str) -> Symbol:
        first, _, rest = base.partition(".")
        if not rest:
            return self._class_in(symbol.module, first)
        member = self._in_module(Symbol(symbol.module, "", ""), first)
        for part in rest.split("."):
            member = self._step(member, part)
        return member

    def _signature(self, symbol: Symbol) -> Signature:
        """Return the parameters for a call of a function, a bound method or a class.

        Raises ``Unknown``.
        """
        if is_class(symbol.definition) and not symbol.instance:
            return self._constructor(symbol)
        if (
            not is_function(symbol.definition)
            or "@property" in symbol.definition
            or "@overload" in symbol.definition
        ):
            raise Unknown
        signature = signature_of(symbol.definition)
        if signature is None:
            raise Unknown
        bound = "@classmethod" in symbol.definition or (
            symbol.instance and "@staticmethod" not in symbol.definition
        )
        return self._forwarded(symbol.module, signature.without_first() if bound else signature)

    def _constructor(self, owner: Symbol) -> Signature:
        classes, is_open = self._ancestors(owner)
        for ancestor in classes:
            definition = self._definition(ancestor.module, f"{ancestor.name}.__init__")
            if definition is not None and (signature := signature_of(definition)) is not None:
                return self._forwarded(ancestor.module, signature.without_first())
        names = {
            base.rpartition(".")[2]
            for ancestor in classes
            for base in bases_of(ancestor.definition)
        }
        generated = any("@dataclass" in ancestor.definition for ancestor in classes) or names & set(
            _GENERATED
        )
        if not generated or (is_open and not names & set(_GENERATED)):
            raise Unknown
        fields = {
            name: default
            for ancestor in reversed(classes)
            for name, default in self._fields(ancestor).items()
        }
        return Signature(
            tuple(Parameter(name, "either", default) for name, default in fields.items())
        )

    def _fields(self, owner: Symbol) -> dict[str, str]:
        """Return the fields of a class.

        Which of them are required is left open, so each has a default.
        """
        prefix = f"{owner.name}."
        fields = {}
        for name, timeline in self._history.symbols(owner.module).items():
            if name.startswith(prefix) and "." not in name.removeprefix(prefix):
                definition = definition_at(timeline, self._release)
                if (
                    definition is not None
                    and definition.startswith(": ")
                    and not definition.startswith(": ClassVar")
                ):
                    fields[name.removeprefix(prefix)] = definition.partition(" = ")[2] or "..."
        return fields

    def _forwarded(self, module: str, signature: Signature, depth: int = 4) -> Signature:
        """Return the signature with the parameters of the callable to which it passes its
        ``**kwargs``."""
        if not signature.forwards or not depth:
            return signature
        try:
            target = self._constructor(self._class_in(module, signature.forwards))
        except (Missing, Unknown):
            return dataclasses.replace(signature, forwards="")
        own = [parameter for parameter in signature.parameters if parameter.kind != "kwargs"]
        names = {parameter.name for parameter in own}
        passed = [
            dataclasses.replace(parameter, kind="keyword", default=parameter.default or "...")
            for parameter in target.parameters
            if parameter.kind in ("either", "keyword") and parameter.name not in names
        ]
        rest = [parameter for parameter in target.parameters if parameter.kind == "kwargs"]
        return Signature((*own, *passed, *rest))

    def _definition(self, module: str, name: str) -> str | None:
        timeline = self._history.symbols(module).get(name)
        return definition_at(timeline, self._release) if timeline is not None else None


_CLOSED = frozenset(
    [
        "ABC",
        "object",
        "Enum",
        "IntEnum",
        "StrEnum",
        "Protocol",
        "Generic",
        "NamedTuple",
        "TypedDict",
        "Exception",
        "ValueError",
        "RuntimeError",
    ]
) | set(_GENERATED)
"""Bases outside vLLM that add no public member."""
