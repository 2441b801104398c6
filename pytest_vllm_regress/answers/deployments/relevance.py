"""Can the documented failures of an installation show in a given deployment?

Decided from what the tests of each case need.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ...cases.model import Case
from ...cases.needs import TestNeeds, needs_of
from ...environments.installed import VLLM
from ...util.versions import version_of
from .findings import UNSET

if TYPE_CHECKING:
    from .configuration import Deployment

_DEFAULT_SIZES = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "tokenizer_pool_size": 0,
}
_ON_BY_DEFAULT = ("enable_prefix_caching", "enable_chunked_prefill")
"""Options that are on in the V1 engine without being named."""
_BACKEND_OF = {
    "xgrammar": "xgrammar",
    "llguidance": "guidance",
    "lm-format-enforcer": "lm-format-enforcer",
    "outlines-core": "outlines",
}
"""The backend for structured output that uses a package."""
_BACKEND_OPTIONS = (
    "structured_outputs_config.backend",
    "structured_output_backend",
    "guided_decoding_backend",
)
_FIRST_V1 = Version("0.8")
_FIRST_WITHOUT_V0 = Version("0.11")
_CONFIGURATIONS = ("kv_transfer_config", "ec_transfer_config", "speculative_config")
"""Options that turn a feature on and configure it."""


class Reach(enum.StrEnum):
    """Whether a deployment can show a failure; the order in which they are listed."""

    REACHABLE = "reachable"
    UNKNOWN = "unknown"
    NOT_REACHABLE = "not reachable"

    @property
    def rank(self) -> int:
        """Position for sorting; 0 is the most relevant."""
        return list(Reach).index(self)


@dataclass(frozen=True)
class Relevance:
    """Whether a failure can show, as far as one need of a test or all of them say, and why."""

    reach: Reach
    reason: str = ""


def _either(met: bool, reason: str, otherwise: str = "") -> Relevance:
    """Return what a need says that is met or not; ``otherwise``: the reason if it is not."""
    if met:
        return Relevance(Reach.REACHABLE, reason)
    return Relevance(Reach.NOT_REACHABLE, otherwise or reason)


def _unknown(reason: str) -> Relevance:
    return Relevance(Reach.UNKNOWN, reason)


def relevance(
    case: Case, versions: Mapping[str, str], deployments: Sequence[Deployment]
) -> Relevance:
    """Return whether one of the deployments can show the failure, from the first that can.

    ``versions``: what is installed, by distribution.
    """
    answers = [(_in_deployment(case, versions, place), place.source) for place in deployments]
    best, source = min(answers, key=lambda answer: answer[0].reach.rank)
    several = len(deployments) > 1 and best.reach is not Reach.NOT_REACHABLE
    return replace(best, reason=f"{source}: {best.reason}") if several else best


def _in_deployment(case: Case, versions: Mapping[str, str], deployment: Deployment) -> Relevance:
    for field, value in case.control.changes.items():
        # The control leg shows no failure: a deployment with its values does not, either.
        if field in _DEFAULT_SIZES and isinstance(value, int):
            condition = _size(deployment, field, value + 1)
            if condition.reach is Reach.NOT_REACHABLE:
                return condition
    answers = [
        _for_test(needs, case, versions, deployment)
        for needs in needs_of(case)
        if needs.say_something_of(versions)
        and (needs.variant is None or needs.variant in case.variants)
        and case.is_affected(versions, needs.variant)
    ]
    unread = _unknown("nothing says which configuration it needs")
    return min(answers, key=lambda answer: answer.reach.rank, default=unread)


def _for_test(
    needs: TestNeeds, case: Case, versions: Mapping[str, str], deployment: Deployment
) -> Relevance:
    conditions = list(_conditions(needs, case, versions, deployment))
    for reach in (Reach.NOT_REACHABLE, Reach.UNKNOWN, Reach.REACHABLE):
        if reach is Reach.REACHABLE and needs.computed:
            return _unknown("the test computes its configuration")
        if reasons := [c.reason for c in conditions if c.reach is reach and c.reason]:
            return Relevance(reach, "; ".join(reasons))
    if needs.front == "serve":
        return Relevance(Reach.REACHABLE, "any server of this version")
    if needs.front:
        return _unknown("shown through the Python interface; not tested over HTTP")
    return _unknown("the test calls a part of vLLM; nothing says which configuration uses it")


def _conditions(
    needs: TestNeeds, case: Case, versions: Mapping[str, str], deployment: Deployment
) -> Iterator[Relevance]:
    """Yield what each need of a test says: parsers, fields of ``EngineSpec``, packages."""
    for option, names in needs.parsers.items():
        yield _choice(deployment, option, names)
    for field, values in needs.engine.items():
        match field:
            case "extra":
                yield from _of_extra(deployment, values[0])
            case "server_options":
                # Such a test needs calls or reasoning, whichever parser makes them.
                parsers = (option for option in values[0] if option.endswith("_parser"))
                yield from (_choice(deployment, option) for option in parsers)
            case "generation" if "auto" not in values and not {"V0", "V1"} <= set(values):
                yield _of_generation(deployment, versions, values[0])
            case "task" if "generate" not in values:
                yield _of_task(deployment, values)
            case "model" if "text" not in values:
                yield _unknown(f"if the model is of the kind {' or '.join(map(str, values))}")
            case "executor" if all(str(value).startswith("ray") for value in values):
                yield _choice(deployment, "distributed_executor_backend", ("ray",))
            case _ if field in _DEFAULT_SIZES and min(values) > _DEFAULT_SIZES[field]:
                yield _size(deployment, field, min(values))
    yield from _of_backend(needs, case, deployment)


def _size(deployment: Deployment, field: str, least: int) -> Relevance:
    flag, value = _flag(field), str(deployment.value(field, _DEFAULT_SIZES[field]))
    if not value.isdecimal():
        return _unknown(f"depends on {flag}, which needs {least} or more")
    reason = f"{flag} is {value}"
    return _either(int(value) >= least, reason, f"{reason}, it needs {least} or more")


def _choice(deployment: Deployment, option: str, names: Sequence[str] = ()) -> Relevance:
    """An option must have one of some values; without ``names`` any."""
    flag, needed = _flag(option), " or ".join(names) or "any"
    value = deployment.value(option, None)
    if value == UNSET:
        return _unknown(f"depends on {flag}, which needs {needed}")
    reason = f"{flag} is {'not set' if value is None else value}"
    met = value is not None and (not names or value in names)
    return _either(met, reason, f"{reason}, it needs {needed}")


def _switch(deployment: Deployment, option: str) -> Relevance:
    flag, by_default = _flag(option), option in _ON_BY_DEFAULT
    value = deployment.value(option, by_default)
    if value == UNSET:
        return _unknown(f"depends on {flag}")
    on = str(value).lower() in ("true", "1")
    return _either(on, "" if by_default else f"{flag} is on", f"{flag} is off")


def _configuration(deployment: Deployment, option: str) -> Relevance:
    flag = _flag(option)
    is_set = any(name.partition(".")[0] == option for name in deployment.options)
    if is_set or deployment.has_default(option):
        return _either(is_set, f"{flag} is set", f"{flag} is not set")
    return _unknown(f"depends on {flag}")


def _of_extra(deployment: Deployment, extra: Mapping[str, Any]) -> Iterator[Relevance]:
    """Features count: switches that are on, and names. Numbers only make the failure show fast."""
    for option, value in extra.items():
        if value is True:
            yield _switch(deployment, option)
        elif isinstance(value, str):
            yield _choice(deployment, option, (value,))
        elif option in _CONFIGURATIONS:
            yield _configuration(deployment, option)


def _of_generation(deployment: Deployment, versions: Mapping[str, str], wanted: str) -> Relevance:
    chosen = deployment.variable("VLLM_USE_V1")
    installed = version_of(next((versions[name] for name in VLLM if name in versions), ""))
    if installed is not None and installed >= _FIRST_WITHOUT_V0:
        return _either(wanted == "V1", "", "this version has no V0 engine")
    if chosen in ("0", "1"):
        reason = f"VLLM_USE_V1={chosen}, it needs the {wanted} engine"
        return _either(wanted == f"V{chosen}", "", reason)
    if chosen == UNSET:
        return _unknown("depends on VLLM_USE_V1")
    if installed is not None and installed < _FIRST_V1:
        reason = "this version uses the V0 engine unless VLLM_USE_V1=1"
        return _either(wanted == "V0", "", reason)
    return _unknown("if vLLM falls back to the V0 engine" if wanted == "V0" else "")


def _of_task(deployment: Deployment, values: Sequence[Any]) -> Relevance:
    options, models = deployment.options, " or ".join(values)
    runs = {options.get("task"), options.get("runner")}
    if "pooling" in runs or options.get("task") in values or "convert" in options:
        return _either(True, "the server embeds, classifies or scores")
    if "generate" in runs or "tool_call_parser" in options:
        return _either(False, f"the server generates text, it needs a model for {models}")
    return _unknown(f"if the model is for {models}")


def _of_backend(needs: TestNeeds, case: Case, deployment: Deployment) -> Iterator[Relevance]:
    packages = {part.package for part in case.affected}
    names = {
        name
        for package, name in _BACKEND_OF.items()
        if package in packages or needs.probe.endswith(f"_{name}")
    }
    names |= set(needs.engine.get("structured_output_backend", ())) - {"auto"}
    if not names:
        return
    options = (deployment.options.get(option) for option in _BACKEND_OPTIONS)
    value = next(filter(None, options), "auto")
    if value in names:
        yield _either(True, f"the structured-output backend is {value}")
    elif value == "auto" and _has_default_backend(deployment) and "xgrammar" in names:
        yield _either(True, "requests with a schema use xgrammar by default")
    else:
        yield _unknown(
            f"if requests use the structured-output backend {' or '.join(sorted(names))}"
        )


def _has_default_backend(deployment: Deployment) -> bool:
    return all(map(deployment.has_default, _BACKEND_OPTIONS))


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
