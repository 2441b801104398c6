"""Since when and until when vLLM has its arguments and features, from the history: what
``dialect/known.json`` says in the target interpreter.

Releases before the history, and one feature that only the text of a function shows, were read from
installed packages; these entries stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import Version

from pytest_vllm_regress.answers.api_history.definitions import is_class
from pytest_vllm_regress.answers.api_history.store import History, definition_at

Has = Callable[[History, int], bool]
Spans = dict[str, list[str]]
_ENGINE_ARGUMENTS = ("EngineArgs", "AsyncEngineArgs")


def symbol(module: str, *names: str) -> Has:
    """Return a check whether a release defines or imports one of these names in a module."""
    return lambda history, number: any(
        history.definition(module, name, number) is not None for name in names
    )


def module(name: str) -> Has:
    """Return a check whether a release has a module."""
    return lambda history, number: history.entry("modules", name, number) is not None


def _has_v0(history: History, number: int) -> bool:
    return is_class(history.definition("vllm.engine.llm_engine", "LLMEngine", number) or "")


def _beam_search(history: History, number: int) -> bool:
    name = "EngineClient.beam_search"
    return "async def" in (history.definition("vllm.engine.protocol", name, number) or "")


FEATURES: dict[str, Has] = {
    "the V1 engine": module("vllm.v1.engine.core"),
    "the V0 engine": _has_v0,
    "structured outputs in SamplingParams": symbol(
        "vllm.sampling_params", "GuidedDecodingParams", "StructuredOutputsParams"
    ),
    "RequestOutputKind": symbol("vllm.sampling_params", "RequestOutputKind"),
    "beam search by the asynchronous engine": _beam_search,
    "pooling in V0": lambda history, number: (
        _has_v0(history, number)
        and symbol("vllm.engine.llm_engine", "PoolingParams")(history, number)
    ),
    "pooling in V1": symbol("vllm.v1.core.sched.output", "NewRequestData.pooling_params"),
    "priorities in V1": module("vllm.v1.core.sched.request_queue"),
    "speculative decoding in V0": module("vllm.spec_decode"),
    "the tokenizer pool of Ray actors": module(
        "vllm.transformers_utils.tokenizer_group.ray_tokenizer_group"
    ),
}


def arguments(history: History, number: int) -> set[str]:
    """Return the engine arguments and server options of a release, with underscores."""
    fields = {
        field
        for name, timeline in history.symbols("vllm.engine.arg_utils").items()
        for owner, _, field in [name.partition(".")]
        if owner in _ENGINE_ARGUMENTS and (definition_at(timeline, number) or "")[:2] == ": "
    }
    options = {
        name.removeprefix("--").replace("-", "_")
        for name, timeline in history.table("options").items()
        if definition_at(timeline, number) is not None
    }
    return fields | options


def known(history: History, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``known.json``.

    ``before`` is its content so far, of which the releases before the history are kept.
    """
    releases = history.releases
    first = Version(releases[0])
    older = [version for version in before["versions"] if Version(version) < first]
    by_release = [arguments(history, number) for number in range(len(releases))]
    features = [
        {name for name, has in FEATURES.items() if has(history, n)} for n in range(len(releases))
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
