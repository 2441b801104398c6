"""Pairs of configurations that must agree, and what of a question each pair can be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ...util import codec
from .engine_question import Request, Turns

OFFLINE, ASYNC, SERVE, MODEL = "offline", "async", "serve", "model"


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One side of a pair.

    Attributes:
        front: ``offline``, ``async`` or ``serve``; ``model`` is what the script and the
            documentation say, without an engine.
        together: whether the requests of a turn are sent together, else one after the other.
        stream: kind of streamed results (``delta``, ``cumulative``); ``sse`` for a server's events;
            empty for whole answers.
        spec: fields of EngineSpec.
        environment: another environment than the campaign's.
    """

    front: str = OFFLINE
    together: bool = True
    stream: str = ""
    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: str = ""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two configurations that must agree.

    Attributes:
        left: the simpler one.
        keeps: what a request may have of ``adapter``, ``priority``, ``salt`` and ``abort``; the
            rest is taken away from it.
        drops: options that legitimately differ here.
        random: whether the answers may depend on random numbers, which other releases draw in
            another way.
    """

    name: str
    left: Configuration
    right: Configuration
    keeps: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()
    random: bool = True

    @property
    def sides(self) -> tuple[Configuration, Configuration]:
        return self.left, self.right

    def fitted(self, question: Turns, lacking: Collection[str] = ()) -> Turns | None:
        """Return what the pair can be asked of a question, None if nothing is left.

        ``lacking``: options that this vLLM does not have.
        """
        turns = [
            tuple(
                self._fitted(request).without(*lacking) for request in filter(self._can_ask, turn)
            )
            for turn in question.turns
        ]
        return Turns(tuple(filter(None, turns))) if any(turns) else None

    def _can_ask(self, request: Request) -> bool:
        if not self.random and not request.said and request.options.get("temperature") != 0:
            return False
        return not (
            SERVE in (self.left.front, self.right.front)
            and request.options.get("detokenize") is False
        )

    def _fitted(self, request: Request) -> Request:
        usual = {name: value for keep, (name, value) in _USUAL.items() if keep not in self.keeps}
        return codec.replace(request, **usual).without(*self.drops)


_USUAL: Mapping[str, tuple[str, Any]] = {
    "adapter": ("adapter", None),
    "priority": ("priority", None),
    "salt": ("salt", ""),
    "abort": ("abort_after", None),
}
"""What requests have without what a pair may keep."""
_NGRAMS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
_LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
_SMALL_STEPS = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "enable_chunked_prefill": True}
_ONE_STEP = {"max_num_batched_tokens": 4096, "max_num_seqs": 4}
_FEW_BLOCKS = {"num_gpu_blocks_override": 40, "enable_prefix_caching": False}
_MANY_BLOCKS = {"num_gpu_blocks_override": 4000, "enable_prefix_caching": False}
_SERVED_DROPS = frozenset({"detokenize", "truncate_prompt_tokens"})
"""Options of requests that mean something else over HTTP: there, truncation belongs to the
tokenizer."""
_RELEASE = frozenset({"structured_outputs"})
"""Another release may come with another grammar library, which allows whitespace in other places.
"""


def _extra(**arguments: Any) -> dict[str, Any]:
    return {"extra": arguments}


def pairs(against: str = "") -> tuple[Pair, ...]:
    """Return all pairs.

    ``against``: the environment of another release, for the pair ``release``.
    """
    plain = Configuration()
    together = (
        Pair("script", Configuration(MODEL), plain),
        Pair("batch", Configuration(together=False), plain),
        Pair("stream", plain, Configuration(ASYNC, stream="cumulative"), frozenset({"abort"})),
        Pair("deltas", plain, Configuration(ASYNC, stream="delta"), frozenset({"abort"})),
        Pair("http", plain, Configuration(SERVE), drops=_SERVED_DROPS),
        Pair(
            "events",
            Configuration(SERVE),
            Configuration(SERVE, stream="sse"),
            drops=_SERVED_DROPS | {"prompt_logprobs"},
        ),
        Pair("tensor-parallel", plain, Configuration(spec={"tensor_parallel_size": 2})),
        Pair(
            "data-parallel",
            Configuration(ASYNC),
            Configuration(ASYNC, spec={"data_parallel_size": 2}),
        ),
        Pair(
            "prefix-cache",
            Configuration(spec=_extra(enable_prefix_caching=False, **_LORA)),
            Configuration(spec=_extra(enable_prefix_caching=True, **_LORA)),
            frozenset({"adapter", "salt"}),
        ),
        Pair(
            "chunked-prefill",
            Configuration(spec=_extra(**_ONE_STEP)),
            Configuration(spec=_extra(**_SMALL_STEPS)),
        ),
        Pair(
            "async-scheduling",
            Configuration(spec=_extra(async_scheduling=False)),
            Configuration(spec=_extra(async_scheduling=True)),
        ),
        Pair(
            "speculation",
            plain,
            Configuration(spec=_extra(speculative_config=_NGRAMS)),
            drops=frozenset({"min_p", "logit_bias"}),
        ),
        Pair(
            "priority",
            plain,
            Configuration(spec=_extra(scheduling_policy="priority")),
            frozenset({"priority"}),
        ),
        Pair(
            "preemption",
            Configuration(spec=_extra(**_MANY_BLOCKS)),
            Configuration(spec=_extra(**_FEW_BLOCKS)),
        ),
    )
    if not against:
        return together
    other = Configuration(environment=against)
    return (*together, Pair("release", plain, other, drops=_RELEASE, random=False))


def pairs_named(names: Sequence[str], against: str = "") -> tuple[Pair, ...]:
    """Return the pairs of these names, all without names.

    Raises ``UsageError`` for an unknown one.
    """
    known = {pair.name: pair for pair in pairs(against)}
    if "release" in names and not against:
        raise UsageError("--pair release: name the other environment with --against")
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"--pair {unknown[0]!r}: allowed are {', '.join(known)}")
    return tuple(pair for name, pair in known.items() if not names or name in names)
