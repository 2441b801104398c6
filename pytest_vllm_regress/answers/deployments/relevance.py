"""Can the documented failures of an installation show in a given deployment?

Decided from what the tests of each case need.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from ...cases.model import Case
from ...cases.needs import TestNeeds, needs_of
from ...environments.installed import VLLM
from ...util.versions import version_of
from .configuration import Deployment
from .reader import UNSET

_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "tokenizer_pool_size",
)
_DEFAULT_SIZES = {**dict.fromkeys(_SIZES, 1), "tokenizer_pool_size": 0}
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


@dataclasses.dataclass(frozen=True)
class Relevance:
    """Whether a failure can show, and why."""

    reach: Reach
    reason: str


@dataclasses.dataclass(frozen=True)
class _Condition:
    """One need of a test. ``met``: None where the configuration does not say."""

    met: bool | None
    reason: str


def _must(met: bool, otherwise: str) -> _Condition:
    return _Condition(met, "" if met else otherwise)


@dataclasses.dataclass(frozen=True)
class _Affected:
    """A case and the versions that have its failure."""

    case: Case
    versions: Mapping[str, str]


def relevance(
    case: Case, versions: Mapping[str, str], deployments: Sequence[Deployment]
) -> Relevance:
    """Return whether one of the deployments can show the failure, from the first that can.

    ``versions``: what is installed, by distribution.
    """
    affected = _Affected(case, versions)
    answers = [_in_deployment(affected, deployment) for deployment in deployments]
    best = min(answers, key=lambda answer: answer.reach.rank)
    place = deployments[answers.index(best)].source
    several = len(deployments) > 1 and best.reach is not Reach.NOT_REACHABLE
    return dataclasses.replace(best, reason=f"{place}: {best.reason}") if several else best


def _in_deployment(affected: _Affected, deployment: Deployment) -> Relevance:
    for condition in _of_control(affected, deployment):
        if condition.met is False:
            return Relevance(Reach.NOT_REACHABLE, condition.reason)
    answers = [
        _for_test(needs, affected, deployment)
        for needs in needs_of(affected.case)
        if _shows(affected, needs.variant)
    ]
    unread = Relevance(Reach.UNKNOWN, "nothing says which configuration it needs")
    return min(answers, key=lambda answer: answer.reach.rank, default=unread)


def _shows(affected: _Affected, variant: str | None) -> bool:
    if variant is not None and variant not in affected.case.variants:
        return False
    return bool(affected.case.is_affected(affected.versions, variant))


def _for_test(needs: TestNeeds, affected: _Affected, deployment: Deployment) -> Relevance:
    conditions = list(_conditions(needs, affected, deployment))
    reasons = {
        met: "; ".join(c.reason for c in conditions if c.met is met and c.reason)
        for met in (False, None, True)
    }
    if reasons[False]:
        return Relevance(Reach.NOT_REACHABLE, reasons[False])
    if reasons[None]:
        return Relevance(Reach.UNKNOWN, reasons[None])
    if needs.computed:
        return Relevance(Reach.UNKNOWN, "the test computes its configuration")
    if reasons[True]:
        return Relevance(Reach.REACHABLE, reasons[True])
    if needs.front == "serve":
        return Relevance(Reach.REACHABLE, "any server of this version")
    if needs.front:
        return Relevance(Reach.UNKNOWN, "shown through the Python interface; not tested over HTTP")
    return Relevance(
        Reach.UNKNOWN, "the test calls a part of vLLM; nothing says which configuration uses it"
    )


def _conditions(
    needs: TestNeeds, affected: _Affected, deployment: Deployment
) -> Iterator[_Condition]:
    for option, names in needs.parsers.items():
        yield _choice(deployment, option, names)
    for field, values in needs.engine.items():
        if field in _SIZES and min(values) > _DEFAULT_SIZES[field]:
            yield _size(deployment, field, min(values))
        elif field in _CHECKS:
            yield from _CHECKS[field](deployment, affected, values)
    yield from _of_backend(needs, affected, deployment)


def _of_control(affected: _Affected, deployment: Deployment) -> Iterator[_Condition]:
    """The control leg shows no failure: a deployment with its values does not, either."""
    for field, value in affected.case.control.changes.items():
        if field in _SIZES and isinstance(value, int):
            yield _size(deployment, field, value + 1)


def _size(deployment: Deployment, field: str, least: int) -> _Condition:
    flag, value = _flag(field), str(deployment.value(field, _DEFAULT_SIZES[field]))
    if not value.isdecimal():
        return _Condition(None, f"depends on {flag}, which needs {least} or more")
    if int(value) >= least:
        return _Condition(True, f"{flag} is {value}")
    return _Condition(False, f"{flag} is {value}, it needs {least} or more")


def _choice(deployment: Deployment, option: str, names: Sequence[str] = ()) -> _Condition:
    """An option must have one of some values; without ``names`` any."""
    flag, needed = _flag(option), " or ".join(names) or "any"
    value = deployment.value(option, None)
    if value is None:
        return _Condition(False, f"{flag} is not set, it needs {needed}")
    if value == UNSET:
        return _Condition(None, f"depends on {flag}, which needs {needed}")
    if not names or value in names:
        return _Condition(True, f"{flag} is {value}")
    return _Condition(False, f"{flag} is {value}, it needs {needed}")


def _switch(deployment: Deployment, option: str) -> _Condition:
    flag, by_default = _flag(option), option in _ON_BY_DEFAULT
    value = deployment.value(option, by_default)
    if value == UNSET:
        return _Condition(None, f"depends on {flag}")
    on = str(value).lower() in ("true", "1")
    return _Condition(on, "" if on and by_default else f"{flag} is {'on' if on else 'off'}")


def _configuration(deployment: Deployment, option: str) -> _Condition:
    flag = _flag(option)
    if any(name.partition(".")[0] == option for name in deployment.options):
        return _Condition(True, f"{flag} is set")
    if deployment.complete:
        return _Condition(False, f"{flag} is not set")
    return _Condition(None, f"depends on {flag}")


def _of_extra(deployment: Deployment, _: _Affected, values: Sequence[Any]) -> Iterator[_Condition]:
    """Features count: switches that are on, and names. Numbers only make the failure show fast."""
    for option, value in values[0].items():
        if value is True:
            yield _switch(deployment, option)
        elif isinstance(value, str):
            yield _choice(deployment, option, (value,))
        elif option in _CONFIGURATIONS:
            yield _configuration(deployment, option)


def _of_server_options(
    deployment: Deployment, _: _Affected, values: Sequence[Any]
) -> Iterator[_Condition]:
    """Parsers count, whichever it is: such a test needs calls or reasoning, and not one of the
    parsers."""
    for option in values[0]:
        if option.endswith("_parser"):
            yield _choice(deployment, option)


def _of_generation(
    deployment: Deployment, affected: _Affected, values: Sequence[Any]
) -> Iterator[_Condition]:
    if "auto" in values or {"V0", "V1"} <= set(values):
        return
    chosen, wanted = deployment.variables.get("VLLM_USE_V1", ""), values[0]
    names = (affected.versions[name] for name in VLLM if name in affected.versions)
    installed = version_of(next(names, ""))
    if installed is not None and installed >= _FIRST_WITHOUT_V0:
        yield _must(wanted == "V1", "this version has no V0 engine")
    elif chosen in ("0", "1"):
        reason = f"VLLM_USE_V1={chosen}, it needs the {wanted} engine"
        yield _must(wanted == f"V{chosen}", reason)
    elif installed is not None and installed < _FIRST_V1:
        yield _must(wanted == "V0", "this version uses the V0 engine unless VLLM_USE_V1=1")
    elif wanted == "V0":
        yield _Condition(None, "if vLLM falls back to the V0 engine")


def _of_task(deployment: Deployment, _: _Affected, values: Sequence[Any]) -> Iterator[_Condition]:
    options, models = deployment.options, " or ".join(values)
    runs = {options.get("task"), options.get("runner")}
    if "generate" in values:
        return
    if "pooling" in runs or options.get("task") in values or "convert" in options:
        yield _Condition(True, "the server embeds, classifies or scores")
    elif "generate" in runs or "tool_call_parser" in options:
        yield _Condition(False, f"the server generates text, it needs a model for {models}")
    else:
        yield _Condition(None, f"if the model is for {models}")


def _of_model(deployment: Deployment, _: _Affected, values: Sequence[Any]) -> Iterator[_Condition]:
    if "text" not in values:
        yield _Condition(None, f"if the model is of the kind {' or '.join(map(str, values))}")


def _of_executor(
    deployment: Deployment, _: _Affected, values: Sequence[Any]
) -> Iterator[_Condition]:
    if all(str(value).startswith("ray") for value in values):
        yield _choice(deployment, "distributed_executor_backend", ("ray",))


def _of_backend(
    needs: TestNeeds, affected: _Affected, deployment: Deployment
) -> Iterator[_Condition]:
    packages = {part.package for part in affected.case.affected}
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
        yield _Condition(True, f"the structured-output backend is {value}")
    elif value == "auto" and deployment.complete and "xgrammar" in names:
        yield _Condition(True, "requests with a schema use xgrammar by default")
    else:
        needed = " or ".join(sorted(names))
        yield _Condition(None, f"if requests use the structured-output backend {needed}")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


_CHECKS: Mapping[str, Callable[[Deployment, _Affected, Sequence[Any]], Iterable[_Condition]]] = {
    "extra": _of_extra,
    "server_options": _of_server_options,
    "generation": _of_generation,
    "task": _of_task,
    "model": _of_model,
    "executor": _of_executor,
}
"""What a value of a field of ``EngineSpec`` asks of a deployment."""
