"""Since when and until when vLLM has its arguments and features, from the history: what
``dialect/known.json`` says in the target interpreter.

Releases before the history, and one feature that only the text of a function shows, were read from
installed packages; these entries stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from pytest_vllm_regress.answers.api_history.store import History, definitions_at

Spans = dict[str, list[str]]
_ENGINE_ARGUMENTS = ("EngineArgs", "AsyncEngineArgs")


FEATURES = {
    "the V1 engine": "vllm.v1.engine.core",
    "the V0 engine": "vllm.engine.llm_engine:LLMEngine class(",
    "structured outputs in SamplingParams": (
        "vllm.sampling_params:GuidedDecodingParams|StructuredOutputsParams"
    ),
    "RequestOutputKind": "vllm.sampling_params:RequestOutputKind",
    "beam search by the asynchronous engine": (
        "vllm.engine.protocol:EngineClient.beam_search async def"
    ),
    "pooling in V0": "vllm.engine.llm_engine:PoolingParams",
    "pooling in V1": "vllm.v1.core.sched.output:NewRequestData.pooling_params",
    "priorities in V1": "vllm.v1.core.sched.request_queue",
    "LoRA in V1": "vllm.v1.worker.lora_model_runner_mixin",
    "speculative decoding in V1": "vllm.v1.spec_decode",
    "speculative decoding in V0": "vllm.spec_decode",
    "the tokenizer pool of Ray actors": (
        "vllm.transformers_utils.tokenizer_group.ray_tokenizer_group"
    ),
}
"""What a release with each feature has: a module, or in it one of the names, whose definition
contains the text after the space."""


def has(history: History, number: int, place: str) -> bool:
    """Return whether a release has what an entry of ``FEATURES`` says."""
    module, _, names = place.partition(":")
    if not names:
        return history.entry("modules", module, number) is not None
    names, _, text = names.partition(" ")
    definitions = (history.definition(module, name, number) for name in names.split("|"))
    return any(definition is not None and text in definition for definition in definitions)


def arguments(history: History, number: int) -> set[str]:
    """Return the engine arguments and server options of a release, with underscores."""
    symbols = definitions_at(history.symbols("vllm.engine.arg_utils"), number)
    fields = {
        field
        for name, definition in symbols.items()
        for owner, _, field in [name.partition(".")]
        if owner in _ENGINE_ARGUMENTS and definition.startswith(": ")
    }
    options = definitions_at(history.table("options"), number)
    return fields | {name.removeprefix("--").replace("-", "_") for name in options}


def known(history: History, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``known.json``.

    ``before`` is its content so far, of which the releases before the history are kept.
    """
    releases = history.releases
    first = Version(releases[0])
    older = [version for version in before["versions"] if Version(version) < first]
    by_release = [arguments(history, number) for number in range(len(releases))]
    features = [
        {name for name, place in FEATURES.items() if has(history, number, place)}
        for number in range(len(releases))
    ]
    return {
        "versions": [*older, *releases],
        "arguments": _spans(releases, by_release, before["arguments"]),
        "features": _spans(releases, features, before["features"]),
    }


def text(document: Mapping[str, Any]) -> str:
    """Return the file with a line for each entry."""
    lines = [f'  "versions": {json.dumps(document["versions"])}']
    for part in ("arguments", "features"):
        rows = ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(span)}" for name, span in document[part].items()
        )
        lines.append(f"  {json.dumps(part)}: {{\n{rows}\n  }}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _spans(
    releases: list[str], names_by_release: list[set[str]], before: Mapping[str, list[str]]
) -> Spans:
    """Return the first and the last release of each name; an entry of ``before`` counts for
    releases before the history."""
    spans: Spans = {}
    for name in sorted({*before, *set().union(*names_by_release)}):
        rows = zip(releases, names_by_release, strict=True)
        having = [release for release, names in rows if name in names]
        earlier = before.get(name, having)
        if having:
            is_older = Version(earlier[0]) < Version(releases[0])
            earlier = [earlier[0] if is_older else having[0], having[-1]]
        spans[name] = earlier
    return spans
