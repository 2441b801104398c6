"""Definitions as short texts: what the history stores for a symbol, and what it means.

| text | symbol |
| --- | --- |
| ``def(self, x, *, y=1)`` | a function; ``async def``, and decorators that matter in front
(``@property def(self)``) |
| ``def(self, **kwargs) > EngineArgs`` | the same, which passes its ``**kwargs`` on to
``EngineArgs`` |
| ``class(Base, Generic)`` | a class; ``@dataclass class()`` |
| ``: int = 5`` | a field of a class, with annotation and default |
| ``.`` and ``.: LLMEngine`` | an attribute that methods assign, with its class where that is plain
|
| ``.: VllmConfig.model_config`` | the same, assigned from an attribute of an instance of that class
|
| ``=`` | another name with a value |
| ``< vllm.x:Name`` | a name imported from another module of vLLM; ``< vllm.x`` is a module |
| ``?< vllm.x:Name`` | the same, for type checkers only |
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


def module_name(path: str) -> str:
    """Return the dotted name of a module from its path in a wheel or a project."""
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def absolute(module: str, is_package: bool, level: int, name: str | None) -> str:
    """Return the module that ``from ...name import`` means in ``module``."""
    if not level:
        return name or ""
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - level + is_package], *([name] if name else [])])


def inner_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements directly in a compound statement: all its branches and handlers."""
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, ())
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from handler.body


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes directly below one. ``ast.iter_child_nodes`` takes twice as long, which is a
    fifth of the time for a project."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST) and name != "ctx":
            yield value


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, in no particular order."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (ast.Name, ast.Constant)):
            todo += children(node)


def last_name(node: object) -> str:
    """Return the name of a variable or an attribute without what is before it; empty for others."""
    name: str = getattr(node, "attr", getattr(node, "id", ""))
    return name


def is_type_checking(test: ast.expr) -> bool:
    return last_name(test) == "TYPE_CHECKING"


def text_of(node: ast.AST | None) -> str:
    """Return the text of a string, also of one with placeholders; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


@dataclass(frozen=True)
class Parameter:
    """A parameter:

    ``kind`` is one of ``positional``, ``either``, ``keyword``, ``args`` and ``kwargs``. ``default``
    is source text.
    """

    name: str
    kind: str
    default: str | None = None

    @property
    def required(self) -> bool:
        return self.default is None and self.kind in ("positional", "either", "keyword")


@dataclass(frozen=True)
class Signature:
    """Parameters of a callable.

    ``forwards``: the callable to which it passes its ``**kwargs``, as named in its module; may be
    empty.
    """

    parameters: tuple[Parameter, ...]
    forwards: str = ""

    def without_first(self) -> Signature:
        """Return the signature of a bound method."""
        bound = self.parameters and self.parameters[0].kind in ("positional", "either")
        return replace(self, parameters=self.parameters[1:]) if bound else self

    def names(self) -> dict[str, Parameter]:
        """Return the parameters that a keyword can name."""
        return {p.name: p for p in self.parameters if p.kind in ("either", "keyword")}

    def positional(self) -> list[str]:
        """Return the names of the parameters that a position can give."""
        return [p.name for p in self.parameters if p.kind in ("positional", "either")]

    def has(self, kind: str) -> bool:
        return any(parameter.kind == kind for parameter in self.parameters)


@dataclass(frozen=True)
class Option:
    """An option of ``vllm serve``: its default as source text, and its choices, of which there are
    none if any value is allowed.

    ``boolean``: it has a negative form. That is not part of its text.
    """

    default: str = ""
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    boolean: bool = False

    def text(self) -> str:
        return json.dumps([self.default, self.choices, self.aliases], separators=(",", ":"))

    @staticmethod
    def of(text: str) -> Option:
        default, choices, aliases = json.loads(text)
        return Option(default, tuple(choices), tuple(aliases))


def options_in(timeline: Sequence[object]) -> Iterator[Option]:
    """Yield what an option was, from its timeline (see ``store``)."""
    return (Option.of(text) for text in timeline[1::2] if isinstance(text, str))


@functools.lru_cache(maxsize=4096)
def bases_of(definition: str) -> tuple[str, ...]:
    """Return the bases in the definition of a class."""
    inside = definition.partition("class(")[2].removesuffix(")")
    return tuple(filter(None, map(str.strip, inside.split(","))))


def is_class(definition: str) -> bool:
    return definition.startswith(("class(", "@dataclass class("))


def is_function(definition: str) -> bool:
    return "def(" in definition and not definition.startswith((":", "=", "."))


@functools.lru_cache(maxsize=4096)
def signature_of(definition: str) -> Signature | None:
    """Return the signature in the definition of a function; None for any other."""
    if not is_function(definition):
        return None
    head, _, forwards = definition.partition(") > ")
    text = head.partition("def(")[2].removesuffix(")")
    try:
        node = ast.parse(f"def f({text}): 0").body[0]
    except SyntaxError:  # a default that was shortened
        return None
    assert isinstance(node, ast.FunctionDef)
    return Signature(parameters_of(node.args), forwards)


def parameters_of(arguments: ast.arguments) -> tuple[Parameter, ...]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    kinds = ["positional"] * len(arguments.posonlyargs) + ["either"] * len(arguments.args)
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    rows = (
        *zip(positional, kinds, defaults, strict=True),
        (arguments.vararg, "args", None),
        *((argument, "keyword", default) for argument, default in keywords),
        (arguments.kwarg, "kwargs", None),
    )
    return tuple(
        Parameter(argument.arg, kind, None if default is None else ast.unparse(default))
        for argument, kind, default in rows
        if argument is not None
    )
