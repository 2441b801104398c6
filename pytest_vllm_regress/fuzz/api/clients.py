"""Whether the types of OpenAI's and Anthropic's own clients accept an answer."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pydantic

from ...errors import UsageError

_WHOLE = {
    "/v1/completions": "openai.types:Completion",
    "/v1/chat/completions": "openai.types.chat:ChatCompletion",
    "/v1/responses": "openai.types.responses:Response",
    "/v1/responses/{response_id}": "openai.types.responses:Response",
    "/v1/embeddings": "openai.types:CreateEmbeddingResponse",
    "/v1/messages": "anthropic.types:Message",
    "/v1/messages/count_tokens": "anthropic.types:MessageTokensCount",
}
_EVENT = {
    "/v1/completions": "openai.types:Completion",
    "/v1/chat/completions": "openai.types.chat:ChatCompletionChunk",
    "/v1/responses": "openai.types.responses:ResponseStreamEvent",
    "/v1/messages": "anthropic.types:RawMessageStreamEvent",
}
_SENT_BY_OPENAI = (
    "Completion: choices.*.finish_reason: literal_error: None",
    "Completion: choices.*.logprobs.token_logprobs.*: float_type: None",
    "Completion: choices.*.logprobs.top_logprobs.*: dict_type: None",
    "CreateEmbeddingResponse: data.*.embedding: list_type",
)
"""What the types refuse although OpenAI's own servers send it: no reason before the end of a
stream, no probability of the first token, and
vectors in Base64, which the client decodes."""


def refusal(route: str, value: Any, *, event: bool = False) -> tuple[str, str]:
    """Return where the client's type for an answer, or for one event of a stream, refuses it, and
    why; both empty if it accepts it.

    Answers of routes that the clients do not know are accepted.
    """
    name = (_EVENT if event else _WHOLE).get(route)
    if name is None:
        return "", ""
    try:
        _adapter(name).validate_python(value)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        for one in sorted(details, key=lambda detail: (-len(detail["loc"]), str(detail["loc"]))):
            place = ".".join("*" if isinstance(part, int) else str(part) for part in one["loc"])
            key = f"{name.rpartition(':')[2]}: {place}: {one['type']}"
            if not {key, f"{key}: {one['input']!r}"}.intersection(_SENT_BY_OPENAI):
                return key, f"{place}: {one['msg']}, not {one['input']!r}"[:500]
    return "", ""


@functools.cache
def _adapter(name: str) -> pydantic.TypeAdapter[Any]:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(
            f"fuzz api needs {package}: install pytest-vllm-regress[fuzz-api]"
        ) from None
    return pydantic.TypeAdapter(kind)
