"""EngineSpec: what engine a test wants, as a frozen value, and the axes a marker may turn into parameters."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from ..errors import UsageError

Json = Any
Front = Literal["offline", "async", "serve"]
"""How a test talks to an engine: ``LLM``, the asynchronous engine, or ``vllm serve``."""
FRONTS: tuple[Front, ...] = get_args(Front)
Task = Literal["generate", "embed", "token_embed", "classify", "score"]
"""What an engine does with prompts."""


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """One engine configuration; hashable, the key of engine reuse.

    ``task``: ``generate``, or what an engine pools prompts to: ``embed`` (a vector), ``token_embed`` (a vector for each token), ``classify``
    (probabilities of classes) or ``score`` (a cross-encoder's number for a pair of texts).
    ``tokenizer_pool_size`` None leaves the pool to vLLM's default; its meaning follows the version (Ray actor pool up to 0.8.4,
    accepted and ignored, removed, thread pool ``renderer_num_workers`` later). ``extra`` are further engine arguments,
    ``server_options`` options of ``vllm serve`` that are no engine arguments, e.g. ``{"tool_call_parser": "hermes"}``,
    ``env`` environment variables of the engine's process. Mappings are kept as sorted tuples of (name, JSON text).
    """

    model: str = "text"
    task: str = "generate"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    executor: str = "auto"
    generation: str = "auto"
    tokenizer_pool_size: int | None = None
    tokenizer_pool_extra_config: str | None = None
    structured_output_backend: str = "auto"
    max_model_len: int = 512
    dtype: str | None = None
    seed: int = 0
    env: tuple[tuple[str, str], ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    server_options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def create(cls, **values: Json) -> EngineSpec:
        """A spec from plain values (mappings allowed where the field is a tuple); checks names, types and ranges."""
        unknown = [name for name in values if name not in _FIELDS]
        if unknown:
            raise UsageError(_unknown_axis(unknown[0]))
        frozen = {name: _freeze(name, value) for name, value in values.items()}
        spec = cls(**frozen)
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len"):
            _check_int(name, getattr(spec, name), least=1)
        if spec.tokenizer_pool_size is not None:
            _check_int("tokenizer_pool_size", spec.tokenizer_pool_size, least=0)
        _check_choice("executor", spec.executor, ("auto", "uni", "mp", "ray", "ray-2-nodes"))
        _check_choice("task", spec.task, get_args(Task))
        _check_choice("generation", spec.generation, ("auto", "V0", "V1"))
        return spec

    def replace(self, **changes: Json) -> EngineSpec:
        """A sibling spec; the same checks as ``create``."""
        return EngineSpec.create(**{**{f: getattr(self, f) for f in _FIELDS}, **changes})

    def laid_over(self, changes: Mapping[str, Json]) -> EngineSpec:
        """A sibling spec; mappings among the changes are added to this spec's own, key by key."""
        merged = {
            name: {**self._mapping(name), **value} if name in _MAPPINGS else value for name, value in changes.items()
        }
        return self.replace(**merged)

    def _mapping(self, name: str) -> dict[str, Json]:
        return {key: text if name == "env" else json.loads(text) for key, text in getattr(self, name)}

    def as_request(self, *, model_path: str, device: str, draft_path: str | None = None) -> dict[str, Json]:
        """The spec as the dialect reads it. ``draft_path``: where the draft model lies, if not where the spec says."""
        plain = dataclasses.asdict(self)
        plain["env"] = dict(self.env)
        plain["extra"] = self.extra_arguments
        if draft_path is not None:
            plain["extra"][_SPECULATION]["model"] = draft_path
        plain["server_options"] = {key: json.loads(text) for key, text in self.server_options}
        if self.tokenizer_pool_extra_config is not None:
            plain["tokenizer_pool_extra_config"] = json.loads(self.tokenizer_pool_extra_config)
        return {**plain, "model_path": model_path, "device": device}

    @property
    def extra_arguments(self) -> dict[str, Json]:
        """``extra`` as plain values."""
        return {name: json.loads(text) for name, text in self.extra}

    @property
    def draft(self) -> str | None:
        """The draft model of speculative decoding: a kind of forged checkpoint, a path or a name; None where there is none."""
        asked = self.extra_arguments.get(_SPECULATION)
        named = asked.get("model") if isinstance(asked, dict) else None
        return named if isinstance(named, str) else None

    @property
    def gpus(self) -> int:
        """GPUs the engine needs on a gpu device."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


_SPECULATION = "speculative_config"
_MAPPINGS = ("env", "extra", "server_options")
_FIELDS = tuple(field.name for field in dataclasses.fields(EngineSpec))
SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "pool": "tokenizer_pool_size",
    "backend": "structured_output_backend",
}
_SHORT_OF = {long: short for short, long in SHORT.items()}


@dataclasses.dataclass(frozen=True)
class Axis:
    """One field with several values, in the order the marker gave them."""

    name: str
    values: tuple[Json, ...]


def front_named(name: object) -> Front:
    """The front of this name. Raises ``UsageError`` naming those there are."""
    for front in FRONTS:
        if front == name:
            return front
    raise UsageError(f"vllm_engine: front={name!r} is not one of {', '.join(FRONTS)}")


def parse_axes(given: Mapping[str, Json]) -> tuple[dict[str, Json], tuple[Axis, ...]]:
    """Split a marker's arguments into fixed fields and axes (lists of values). Raises ``UsageError`` for unknown names."""
    fixed: dict[str, Json] = {}
    axes: list[Axis] = []
    for short, value in given.items():
        name = SHORT.get(short, short)
        if name not in _FIELDS:
            raise UsageError(_unknown_axis(short))
        if isinstance(value, list):
            if not value:
                raise UsageError(f"vllm_engine({short}=[]): an axis needs at least one value")
            axes.append(Axis(name, tuple(value)))
        else:
            fixed[name] = value
        for each in value if isinstance(value, list) else [value]:
            EngineSpec.create(**{name: each})
    return fixed, tuple(axes)


def combinations(axes: tuple[Axis, ...]) -> list[dict[str, Json]]:
    """Every combination of the axes' values, first axis slowest."""
    return [dict(zip((a.name for a in axes), row, strict=True)) for row in itertools.product(*(a.values for a in axes))]


def combination_id(values: Mapping[str, Json]) -> str:
    """A readable test id: ``tp2-pp1-pool2-V1``."""
    return "-".join(_value_id(name, value) for name, value in values.items())


def _value_id(name: str, value: Json) -> str:
    if name in ("generation", "executor", "model", "task"):
        return str(value)
    if isinstance(value, dict):
        value = "+".join(map(str, value)) or "none"
    return f"{_SHORT_OF.get(name, name)}{value}"


def _freeze(name: str, value: Json) -> Json:
    if name in _MAPPINGS and isinstance(value, Mapping):
        return tuple(
            sorted((str(k), str(v) if name == "env" else json.dumps(v, sort_keys=True)) for k, v in value.items())
        )
    if name == "tokenizer_pool_extra_config" and isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    return value


def _check_int(name: str, value: Json, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"engine spec: {name}={value!r} is not a whole number of at least {least}")


def _check_choice(name: str, value: Json, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"engine spec: {name}={value!r} is not one of {', '.join(allowed)}")


def _unknown_axis(name: str) -> str:
    known = [*SHORT, *_FIELDS]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"vllm_engine: unknown argument {name!r}.{hint} Allowed: {', '.join(known)}"
