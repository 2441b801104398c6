"""EngineSpec: the engine that a test asks for, as an immutable value, and the axes by which a
marker parametrizes a test."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..errors import UsageError
from ..util.validation import did_you_mean

Json = Any
Front = Literal["offline", "async", "serve"]
"""How a test uses an engine: through ``LLM``, the asynchronous engine, or ``vllm serve``."""
FRONTS: tuple[Front, ...] = get_args(Front)
Task = Literal["generate", "embed", "token_embed", "classify", "score"]
"""What an engine does with prompts."""


class FrozenMapping(Mapping[str, Any]):
    """An immutable mapping of JSON values, sorted by key.

    Equality and hash follow the canonical JSON text, so that 1, 1.0 and True are different values.
    ``plain`` returns an ordinary copy. Raises ``TypeError`` for a value that JSON does not have.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        plain = {str(key): value for key, value in (values or {}).items()}
        self._values = {key: freeze(plain[key]) for key in sorted(plain)}
        self._canonical = json.dumps(self.plain(), sort_keys=True)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return (
            self._canonical
            == (other if isinstance(other, FrozenMapping) else FrozenMapping(other))._canonical
        )

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        return repr(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return a copy made of dictionaries and lists."""
        return {key: thaw(value) for key, value in self._values.items()}


def freeze(value: Any) -> Any:
    """Return ``value`` with its mappings and lists replaced by immutable ones."""
    if isinstance(value, Mapping):
        return value if isinstance(value, FrozenMapping) else FrozenMapping(value)
    return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value


def thaw(value: Any) -> Any:
    """Return ``value`` with its immutable mappings and tuples replaced by dictionaries and lists."""
    if isinstance(value, FrozenMapping):
        return value.plain()
    return list(map(thaw, value)) if isinstance(value, tuple) else value


_NOTHING = FrozenMapping()


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """One engine configuration. It is hashable, and tests with equal specs share an engine.

    ``task``: ``generate``, or a pooling task: ``embed`` (one vector), ``token_embed`` (one vector
    per token), ``classify`` (class probabilities) or ``score`` (a cross-encoder's score for a pair
    of texts).
    ``max_model_len``: forged decoders take up to 32768 tokens.
    ``tokenizer_pool_size``: None keeps vLLM's default. Its meaning depends on the version: a Ray
    actor pool up to 0.8.4, later accepted and ignored, then removed, then the thread pool
    ``renderer_num_workers``. ``extra``: further engine arguments. ``server_options``: options of
    ``vllm serve`` that are not engine arguments, e.g. ``{"tool_call_parser": "hermes"}``. ``env``:
    environment variables of the engine's process.
    ``import_path``: folders from which each of its processes imports modules, after our own and
    before those of the environment. In the marker they are relative to the test file, elsewhere
    absolute. ``command_line``: the words after ``vllm serve MODEL``, as they are; ``launch`` and
    ``render`` before them stand for that command. Such a server has no API key of ours, and of the
    other fields only ``model``, ``env``,
    ``import_path`` and ``generation`` count.
    Values are checked, and mappings frozen, when the spec is made. Raises ``UsageError`` for a
    value that is not allowed.
    """

    model: str = "text"
    task: str = "generate"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    executor: str = "auto"
    generation: str = "auto"
    tokenizer_pool_size: int | None = None
    tokenizer_pool_extra_config: Mapping[str, Json] | None = None
    structured_output_backend: str = "auto"
    max_model_len: int = 512
    dtype: str | None = None
    seed: int = 0
    import_path: Sequence[str | Path] = ()
    env: Mapping[str, str] = _NOTHING
    extra: Mapping[str, Json] = _NOTHING
    server_options: Mapping[str, Json] = _NOTHING
    command_line: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _check_int(name, getattr(self, name), least)
        for name, allowed in _ALLOWED.items():
            _check_choice(name, getattr(self, name), allowed)
        for name in (*_MAPPINGS, "tokenizer_pool_extra_config"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        if "PYTHONPATH" in self.env:
            raise UsageError(
                "engine spec: env PYTHONPATH would hide the modules of this package from the engine: name the folders in import_path instead, "
                'for example import_path=["plugins"]'
            )
        folders = _texts("import_path", self.import_path, (str, Path), "folders")
        object.__setattr__(self, "import_path", folders)
        if self.command_line is not None:
            what = "texts, the words after `vllm serve MODEL`"
            words = _texts("command_line", self.command_line, str, what)
            object.__setattr__(self, "command_line", words)

    @classmethod
    def create(cls, **values: Json) -> EngineSpec:
        """Return a spec. Unlike the constructor, this accepts short names such as ``tp``.

        Raises ``UsageError`` for an unknown name and suggests the closest one.
        """
        values = full_names(values)
        unknown = [name for name in values if name not in _FIELDS]
        if unknown:
            raise UsageError(_unknown_axis(unknown[0]))
        return cls(**values)

    def replace(self, **changes: Json) -> EngineSpec:
        """Return a copy with these fields changed. Checks as ``create`` does."""
        return EngineSpec.create(**{**{name: getattr(self, name) for name in _FIELDS}, **changes})

    def merged_with(self, changes: Mapping[str, Json]) -> EngineSpec:
        """Return a copy with these fields changed.

        Mappings are merged into this spec's mappings key by key.
        """
        merged = {
            name: {**getattr(self, name), **value} if name in _MAPPINGS else value
            for name, value in changes.items()
        }
        return self.replace(**merged)

    def relative_to(self, folder: Path) -> EngineSpec:
        """Return a copy whose ``import_path`` is absolute.

        Raises ``UsageError`` for what is no folder below or beside ``folder``.
        """
        folders = [folder / path for path in self.import_path]
        for path in folders:
            if not path.is_dir():
                raise UsageError(f"engine spec: import_path: there is no folder {path}")
        return self.replace(import_path=folders) if folders else self

    def check_front(self, front: Front) -> None:
        """Raise ``UsageError`` for a field that means nothing to ``front``, or that means something
        in the marker only."""
        if self.server_options and front != "serve":
            raise UsageError(
                f"vllm_engine: server_options are options of `vllm serve` and mean nothing to front={front!r}: use the fixture vllm_server, or extra "
                "for engine arguments"
            )
        if self.command_line is not None and front != "serve":
            raise UsageError(
                f"vllm_engine: command_line is that of `vllm serve` and means nothing to front={front!r}"
            )
        if relative := [folder for folder in self.import_path if not Path(folder).is_absolute()]:
            raise UsageError(
                f"engine spec: import_path={relative}: relative folders mean something in the marker vllm_engine only, where they begin at the test "
                "file; give absolute paths here"
            )

    def as_request(
        self,
        *,
        model_path: str,
        device: str,
        draft_path: str | None = None,
        default_arguments: Mapping[str, Json] = MappingProxyType({}),
        gpu: Mapping[str, Json] | None = None,
    ) -> dict[str, Json]:
        """Return the spec in the form that the target's dialect reads.

        ``draft_path``: path of the draft model, if it differs from the name in the spec.
        ``default_arguments``: engine arguments that count where ``extra`` does not name them.
        ``gpu``: what was leased for the engine, on the gpu device.
        """
        fields = {name: thaw(getattr(self, name)) for name in _FIELDS}
        extra = {**default_arguments, **fields["extra"]}
        if draft_path is not None:
            extra[_SPECULATION] = {**extra[_SPECULATION], "model": draft_path}
        request = {**fields, "extra": extra, "model_path": model_path, "device": device}
        return request if gpu is None else {**request, "gpu": dict(gpu)}

    @property
    def draft(self) -> str | None:
        """The draft model of speculative decoding: a kind of forged checkpoint, a path or a name.

        None without a draft model.
        """
        config = self.extra.get(_SPECULATION)
        model = config.get("model") if isinstance(config, Mapping) else None
        return model if isinstance(model, str) else None

    @property
    def gpus(self) -> int:
        """Number of GPUs that the engine needs on a gpu device."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


_SPECULATION = "speculative_config"
_MAPPINGS = ("env", "extra", "server_options")
_LEAST = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "max_model_len": 1,
    "tokenizer_pool_size": 0,
}
_ALLOWED = {
    "executor": ("auto", "uni", "mp", "ray", "ray-2-nodes"),
    "task": get_args(Task),
    "generation": ("auto", "V0", "V1"),
}
_LISTS = ("import_path", "command_line")
"""Fields whose value is a list. A marker has no axes of them."""
_FIELDS = tuple(field.name for field in dataclasses.fields(EngineSpec))
SHORT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "pool": "tokenizer_pool_size",
    "backend": "structured_output_backend",
}
"""Short names of fields, which markers and cases may use."""
_SHORT_OF = {field: short for short, field in SHORT.items()}


@dataclasses.dataclass(frozen=True)
class Axis:
    """A field with several values, in the order of the marker."""

    name: str
    values: tuple[Json, ...]


def front_named(name: object) -> Front:
    """Return the front of this name. Raises ``UsageError`` for an unknown one."""
    for front in FRONTS:
        if front == name:
            return front
    raise UsageError(f"front={name!r} is not one of {', '.join(FRONTS)}")


def full_names(values: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values with full names in place of short ones.

    Raises ``UsageError`` for a field that has a value under both.
    """
    for short, name in SHORT.items():
        if short in values and name in values:
            raise UsageError(f"engine spec: {short} is short for {name}: give one of them")
    return {SHORT.get(name, name): value for name, value in values.items()}


def parse_axes(
    arguments: Mapping[str, Json], others: Sequence[str] = ()
) -> tuple[dict[str, Json], tuple[Axis, ...]]:
    """Split a marker's arguments into fields with one value and axes (lists of values). Raises
    ``UsageError`` for unknown names and bad values.

    ``others``: what else the marker accepts, for the message about an unknown name.
    """
    fixed: dict[str, Json] = {}
    axes: list[Axis] = []
    for name, value in full_names(arguments).items():
        if name not in _FIELDS:
            raise UsageError(_unknown_axis(name, others))
        is_axis = isinstance(value, list) and name not in _LISTS
        if is_axis:
            if not value:
                raise UsageError(f"vllm_engine({name}=[]): an axis needs at least one value")
            if len(set(map(repr, value))) < len(value):
                raise UsageError(f"vllm_engine({name}={value!r}): an axis has each value once")
            axes.append(Axis(name, tuple(value)))
        else:
            fixed[name] = value
        for single in value if is_axis else [value]:
            EngineSpec.create(**{name: single})
    return fixed, tuple(axes)


def combinations(axes: tuple[Axis, ...]) -> list[dict[str, Json]]:
    """Return every combination of the axes' values; the last axis changes fastest."""
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def combination_id(values: Mapping[str, Json]) -> str:
    """Return a readable test id such as ``tp2-pp1-pool2-V1``."""
    return "-".join(_value_id(name, value) for name, value in values.items())


def _value_id(name: str, value: Json) -> str:
    if name in ("generation", "executor", "model", "task"):
        return str(value)
    if isinstance(value, dict):  # names only, because a value may be a secret
        value = "+".join(map(str, value)) or "none"
    return f"{_SHORT_OF.get(name, name)}{value}"


def _frozen(name: str, value: Json) -> FrozenMapping | None:
    """Return the immutable mapping for a field; the tokenizer pool's configuration may also be None
    or JSON text."""
    if name == "tokenizer_pool_extra_config":
        if value is None:
            return None
        value = _parsed(name, value) if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise UsageError(f"engine spec: {name} must be a mapping, not {type(value).__name__}")
    try:
        return FrozenMapping(_variables(value) if name == "env" else value)
    except TypeError as error:
        raise UsageError(f"engine spec: {name} must hold JSON values only: {error}") from None


def _variables(value: Mapping[Any, object]) -> dict[str, str]:
    """Return the variables with their values as text.

    Raises ``UsageError`` for a name or a value that no process can have.
    """
    variables = {key: str(text) for key, text in value.items()}
    for key, text in variables.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key + text:
            raise UsageError(
                f"engine spec: env: {key!r} cannot be set: a name is a non-empty text without '=', and neither name nor value has a null "
                "character"
            )
    return variables


def _texts(name: str, value: object, of: type | tuple[type, ...], what: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, of) for item in value):
        raise UsageError(f"engine spec: {name}={value!r} is not a list of {what}")
    return tuple(map(str, value))


def _parsed(name: str, text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"engine spec: {name}={text!r} is not JSON: {error}") from None


def _check_int(name: str, value: Json, least: int) -> None:
    if value is None and name == "tokenizer_pool_size":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"engine spec: {name}={value!r} is not a whole number of at least {least}")


def _check_choice(name: str, value: Json, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"engine spec: {name}={value!r} is not one of {', '.join(allowed)}")


def _unknown_axis(name: str, others: Sequence[str] = ()) -> str:
    allowed = [*others, *SHORT, *_FIELDS]
    hint = did_you_mean(name, allowed)
    return f"vllm_engine: unknown argument {name!r}.{hint} Allowed: {', '.join(allowed)}"
