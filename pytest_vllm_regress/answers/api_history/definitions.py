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
import dataclasses
import functools

MAX_TEXT = 72
"""Characters of a default or an annotation that are kept."""
MEMBER_DECORATORS = (
    "staticmethod",
    "classmethod",
    "property",
    "cached_property",
    "abstractmethod",
    "overload",
)


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class Signature:
    """Parameters of a callable.

    ``forwards``: the callable to which it passes its ``**kwargs``, as named in its module; may be
    empty.
    """

    parameters: tuple[Parameter, ...]
    forwards: str = ""

    def without_first(self) -> Signature:
        """Return the signature of a bound method."""
        first = self.parameters[:1]
        bound = bool(first) and first[0].kind in ("positional", "either")
        return dataclasses.replace(self, parameters=self.parameters[1:]) if bound else self

    def names(self) -> dict[str, Parameter]:
        """Return the parameters that a keyword can name."""
        return {p.name: p for p in self.parameters if p.kind in ("either", "keyword")}

    def has(self, kind: str) -> bool:
        return any(parameter.kind == kind for parameter in self.parameters)


def shortened(node: ast.AST | None) -> str:
    """Return the source text of an expression on one line, of bounded length."""
    if node is None:
        return ""
    if (
        isinstance(node, (ast.Dict, ast.List, ast.Set, ast.Tuple))
        and len(ast.unparse(node)) > MAX_TEXT
    ):
        return "..."
    try:
        text = " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "..."
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def function_text(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the definition of a function, without annotations."""
    names = [_decorator_name(decorator) for decorator in node.decorator_list]
    marks = "".join(f"@{name} " for name in names if name in MEMBER_DECORATORS)
    forwards = _forwards(node)
    return (
        f"{marks}{'async ' * isinstance(node, ast.AsyncFunctionDef)}def({_parameters(node.args)})"
        + (f" > {forwards}" if forwards else "")
    )


def class_text(node: ast.ClassDef) -> str:
    """Return the definition of a class: its bases, and whether it is a dataclass."""
    names = [_decorator_name(decorator) for decorator in node.decorator_list]
    mark = "@dataclass " if any(name in ("dataclass", "config") for name in names) else ""
    bases = [
        shortened(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases
    ]
    return f"{mark}class({', '.join(bases)})"


def bases_of(definition: str) -> tuple[str, ...]:
    """Return the bases in the definition of a class."""
    inside = definition.partition("class(")[2].removesuffix(")")
    return tuple(filter(None, (base.strip() for base in inside.split(","))))


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
    return Signature(tuple(_read(node.args)), forwards)


def _parameters(arguments: ast.arguments) -> str:
    parts = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        parts.append(argument.arg + (f"={_default(default)}" if default is not None else ""))
        if number + 1 == len(arguments.posonlyargs):
            parts.append("/")
    if arguments.vararg or arguments.kwonlyargs:
        parts.append("*" + (arguments.vararg.arg if arguments.vararg else ""))
    for argument, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(
            argument.arg + (f"={_default(keyword_default)}" if keyword_default is not None else "")
        )
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return ", ".join(parts)


def _default(node: ast.expr) -> str:
    """Return a default as an expression that can be parsed again."""
    text = shortened(node)
    return "..." if text.endswith("...") else text


def _read(arguments: ast.arguments) -> list[Parameter]:
    def text(node: ast.expr | None) -> str | None:
        return None if node is None else ast.unparse(node)

    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    only = len(arguments.posonlyargs)
    parameters = [
        Parameter(argument.arg, "positional" if number < only else "either", text(default))
        for number, (argument, default) in enumerate(zip(positional, defaults, strict=True))
    ]
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, "args"))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(Parameter(argument.arg, "keyword", text(default)))
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, "kwargs"))
    return parameters


def _decorator_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def _forwards(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the class to which a function passes its ``**kwargs``; empty if there is none, or more
    than one."""
    if node.args.kwarg is None:
        return ""
    names = {
        call.func.id
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id[:1].isupper()
        and any(
            word.arg is None
            and isinstance(word.value, ast.Name)
            and word.value.id == node.args.kwarg.arg
            for word in call.keywords
        )
    }
    return names.pop() if len(names) == 1 else ""
