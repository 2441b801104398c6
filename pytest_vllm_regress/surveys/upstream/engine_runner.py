"""``VllmRunner`` with upstream's signature, over our offline engines: warm, supervised, with
deadlines, and reused where the arguments are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...engines.engine import CompletionOutput, Engine, RequestOutput
from ...engines.spec import EngineSpec
from ...errors import UsageError
from . import settings

Logprobs = list[dict[str, float] | None] | None
Sample = tuple[list[int], str, Logprobs]
_TASKS = {
    "auto": "generate",
    "generate": "generate",
    "embed": "embed",
    "embedding": "embed",
    "classify": "classify",
    "score": "score",
}
_DEFAULTS: Mapping[str, Any] = {
    "trust_remote_code": True,
    "block_size": 16,
    "enable_chunked_prefill": False,
}
"""Upstream's defaults that differ from vLLM's.

``max_model_len`` and ``seed`` are fields of the spec.
"""


class VllmRunner:
    """An ``LLM`` for a test, in a process of its own. Objects with equal arguments share a running
    engine. Use it in a ``with`` block.

    ``model`` is our ``Engine``, not vLLM's ``LLM``: what is missing here is on it, with deadlines.
    Sampling parameters are a mapping by name, or vLLM's SamplingParams. The environment is chosen
    as for ``RemoteOpenAIServer``. Raises ``UsageError`` for a name without a stand-in on the
    simulated device, and the errors of starting an engine.
    """

    def __init__(
        self,
        model_name: str,
        task: str = "auto",
        tokenizer_name: str | None = None,
        *,
        seed: int | None = 0,
        max_model_len: int | None = 1024,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        **arguments: Any,
    ) -> None:
        if task not in _TASKS:
            raise UsageError(f"VllmRunner: task={task!r} is not one of {', '.join(_TASKS)}")
        self._engines = settings.engines()
        settings.provide(model_name, self._engines.target.device)
        if tokenizer_name is not None:
            arguments["tokenizer"] = tokenizer_name
        spec = EngineSpec.create(
            model=model_name,
            task=_TASKS[task],
            seed=seed or 0,
            max_model_len=max_model_len or EngineSpec().max_model_len,
            tensor_parallel_size=tensor_parallel_size,
            dtype=None if dtype == "auto" else dtype,
            extra={
                **_DEFAULTS,
                **{name: value for name, value in arguments.items() if value is not None},
            },
        )
        self.model: Engine = self._engines(spec, front="offline")

    def __enter__(self) -> VllmRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self._engines.release(self.model)

    def generate(
        self, prompts: Sequence[str], sampling_params: object
    ) -> list[tuple[list[list[int]], list[str]]]:
        """Return for each prompt token ids and texts of its samples, each with the prompt before
        it."""
        results = self.model.generate(list(prompts), _sampling(sampling_params))
        return [
            _with_prompt(prompt, result) for prompt, result in zip(prompts, results, strict=True)
        ]

    def generate_w_logprobs(self, prompts: Sequence[str], sampling_params: object) -> list[Sample]:
        """Return for each prompt token ids, text and logprobs of its last sample."""
        results = self.model.generate(list(prompts), _sampling(sampling_params))
        return [_sample(result["outputs"][-1]) for result in results]

    def generate_greedy(
        self, prompts: Sequence[str], max_tokens: int
    ) -> list[tuple[list[int], str]]:
        """Return for each prompt token ids and text of the likeliest answer, with the prompt before
        it."""
        samples = self.generate(prompts, {"temperature": 0.0, "max_tokens": max_tokens})
        return [(ids[0], texts[0]) for ids, texts in samples]

    def generate_greedy_logprobs(
        self,
        prompts: Sequence[str],
        max_tokens: int,
        num_logprobs: int,
        *,
        stop_token_ids: list[int] | None = None,
        stop: list[str] | None = None,
    ) -> list[Sample]:
        """Return for each prompt token ids, text and logprobs of the likeliest answer."""
        sampling = {"temperature": 0.0, "max_tokens": max_tokens, "logprobs": num_logprobs}
        optional = {"stop_token_ids": stop_token_ids, "stop": stop}
        return self.generate_w_logprobs(
            prompts, {**sampling, **{n: v for n, v in optional.items() if v is not None}}
        )

    def generate_beam_search(
        self, prompts: Sequence[str], beam_width: int, max_tokens: int
    ) -> list[tuple[list[list[int]], list[str]]]:
        """Return for each prompt token ids and texts of the best beams."""
        found = self.model.beam_search(list(prompts), beam_width=beam_width, max_tokens=max_tokens)
        return [
            ([beam["token_ids"] for beam in beams], [beam["text"] for beam in beams])
            for beams in found
        ]

    def classify(self, prompts: Sequence[str]) -> list[list[float]]:
        """Return the probability of each class for each prompt."""
        return self.model.classify(list(prompts))

    def encode(self, prompts: Sequence[str]) -> list[list[float]]:
        """Return the vector of each prompt. Upstream's later name is ``embed``."""
        return self.model.embed(list(prompts))

    embed = encode

    def score(self, text_1: str, text_2: str | Sequence[str]) -> list[float]:
        """Return the score of ``text_1`` with each of ``text_2``."""
        return self.model.score(text_1, [text_2] if isinstance(text_2, str) else list(text_2))


def _with_prompt(prompt: str, result: RequestOutput) -> tuple[list[list[int]], list[str]]:
    ids, samples = result["prompt_token_ids"], result["outputs"]
    return [[*ids, *sample["token_ids"]] for sample in samples], [
        prompt + sample["text"] for sample in samples
    ]


def _sample(output: CompletionOutput) -> Sample:
    return output["token_ids"], output["text"], output["logprobs"]


def _sampling(params: object) -> dict[str, Any]:
    """Return sampling parameters by name.

    Of vLLM's own object, those that differ from its defaults.
    """
    if isinstance(params, Mapping):
        return dict(params)
    names: Sequence[str] = getattr(params, "__struct_fields__", ())
    if not names:
        raise UsageError(
            f"VllmRunner: sampling parameters are a mapping or vLLM's SamplingParams, not {type(params).__name__}"
        )
    default = type(params)()
    values = {name: getattr(params, name) for name in names if not name.startswith("_")}
    return {
        name: value
        for name, value in values.items()
        if value != getattr(default, name) and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float, list, dict, type(None)))
