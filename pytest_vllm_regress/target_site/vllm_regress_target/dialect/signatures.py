"""Calls to vLLM's internals that depend on their signatures instead of on vLLM's version."""

import inspect
from dataclasses import fields
from typing import Any, Callable


class SimulationGap(RuntimeError):
    """The installed vLLM needs something that the simulated device does not have."""

    def __init__(self, what: str) -> None:
        import vllm

        super().__init__(
            f"the simulated device of pytest-vllm-regress cannot serve vLLM {getattr(vllm, '__version__', '(unknown)')}: {what}. "
            "Run this on another device (cpu or gpu), or extend vllm_regress_target/sim."
        )


def call_with(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call ``function`` with those of ``values`` that are named like its parameters.

    A dataclass is called with its fields. Raises :class:`SimulationGap` for a required parameter
    without a value.
    """
    arguments, missing = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in values:
            arguments[parameter.name] = values[parameter.name]
        elif parameter.default is parameter.empty:
            missing.append(parameter.name)
    if missing:
        name = getattr(function, "__qualname__", repr(function))
        raise SimulationGap(f"{name} wants {', '.join(missing)}, which it does not know")
    return function(**arguments)


def has_parameter(function: Callable[..., Any], name: str) -> bool:
    """Return whether ``function`` has a parameter of this name."""
    return name in inspect.signature(function).parameters


def field_type(cls: type, name: str) -> str:
    """Return the annotation of a dataclass field as text, or an empty string."""
    for field in fields(cls):
        if field.name == name:
            return str(field.type)
    return ""


def first_attribute(owner: Any, *names: str) -> Any:
    """Return the first attribute of ``names`` that ``owner`` has."""
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise SimulationGap(f"{type(owner).__name__} has none of {', '.join(names)}")
