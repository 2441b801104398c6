"""Calling vLLM's internals by what they ask for, not by their version."""

import dataclasses
import inspect
from typing import Any, Callable, Tuple


class SimulationGap(RuntimeError):
    """This vLLM wants something of its device which the simulated one does not have."""

    def __init__(self, what: str) -> None:
        import vllm

        super().__init__(
            f"the simulated device of pytest-vllm-regress cannot serve vLLM {getattr(vllm, '__version__', '(unknown)')}: {what}. "
            "Run this on another device (cpu or gpu), or extend vllm_regress_target/sim."
        )


def feed(function: Callable[..., Any], known: dict[str, Any]) -> Any:
    """Call `function` with those of the `known` values whose names it has as parameters.

    A dataclass is called through its fields. A parameter without a default that is not known is a :class:`SimulationGap`, named.
    """
    given, missing = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in known:
            given[parameter.name] = known[parameter.name]
        elif parameter.default is parameter.empty:
            missing.append(parameter.name)
    if missing:
        name = getattr(function, "__qualname__", repr(function))
        raise SimulationGap(f"{name} wants {', '.join(missing)}, which it does not know")
    return function(**given)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether `function` has a parameter of this name."""
    return name in inspect.signature(function).parameters


def field_type(cls: type, name: str) -> str:
    """The annotation of a dataclass field as text, or an empty string."""
    for field in dataclasses.fields(cls):
        if field.name == name:
            return str(field.type)
    return ""


def first_attribute(owner: Any, *names: str) -> Any:
    """The first attribute of these names that exists."""
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise SimulationGap(f"{type(owner).__name__} has none of {', '.join(names)}")


def generation_tasks(model_config: Any) -> Tuple[str, ...]:
    """What vLLM's own runner would say that this model generates: a text, transcriptions, or those alone."""
    known = getattr(model_config, "_model_info", None)
    if not getattr(known, "supports_transcription", False):
        return ("generate",)
    return ("transcription",) if getattr(known, "supports_transcription_only", False) else ("generate", "transcription")
