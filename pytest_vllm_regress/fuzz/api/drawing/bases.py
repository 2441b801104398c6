"""Valid requests for each route, in which fields are then changed: drawn bodies alone are nearly
always refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..servers import ADAPTER, ADAPTER_NAME, MODEL

Body = Mapping[str, Any]
_MODEL = {"model": MODEL}
_USER = {"role": "user", "content": "Hi"}
_PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = {"name": "f", "description": "d", "parameters": _PARAMETERS}
_IMAGE_URL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAARElEQVR42u3OQQkAAAgEsItiFKMZ3YcphMECLNP1QkRFRUVFRUVFRUVFRUVF"
    "RUVFRUVFRUVFRUVFRUVFRUVFRUVFRc8Cede4l4NsvzAAAAAASUVORK5CYII="
)
"""An image of 56 by 56 pixels."""
_SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "s",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "strict": True,
    },
}

_COMPLETION = {**_MODEL, "prompt": "Hi", "max_tokens": 2}
_CHAT = {**_MODEL, "messages": [_USER], "max_tokens": 2}
_RESPONSE = {**_MODEL, "input": "Hi", "max_output_tokens": 2}
_MESSAGE = {**_MODEL, "messages": [_USER], "max_tokens": 2}
_STREAM = {"stream": True}

_GENERATION: Mapping[str, tuple[Body, ...]] = {
    "/v1/completions": (
        _COMPLETION,
        {**_COMPLETION, **_STREAM, "stream_options": {"include_usage": True}},
        {**_COMPLETION, "logprobs": 1, "echo": True, "n": 2},
        {**_COMPLETION, "prompt": [65, 66], "prompt_logprobs": 1},
        {**_COMPLETION, "response_format": _SCHEMA_FORMAT},
        {**_COMPLETION, "structured_outputs": {"regex": "a+"}},
    ),
    "/v1/chat/completions": (
        _CHAT,
        {
            **_CHAT,
            **_STREAM,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        {**_CHAT, "logprobs": True, "top_logprobs": 1},
        {**_CHAT, "tools": [{"type": "function", "function": _FUNCTION}], "tool_choice": "auto"},
        {
            **_CHAT,
            "tools": [{"type": "function", "function": _FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        {**_CHAT, "response_format": _SCHEMA_FORMAT},
        {**_CHAT, "structured_outputs": {"choice": ["a", "b"]}},
        {
            **_MODEL,
            "max_tokens": 2,
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "r"},
            ],
        },
    ),
    "/v1/chat/completions/batch": ({**_MODEL, "messages": [[_USER], [_USER]], "max_tokens": 2},),
    "/v1/responses": (
        _RESPONSE,
        {**_RESPONSE, **_STREAM},
        {**_RESPONSE, "input": [{"role": "user", "content": "Hi"}], "instructions": "s"},
        {
            **_RESPONSE,
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}],
                }
            ],
        },
        {
            **_RESPONSE,
            "tools": [{"type": "function", **_FUNCTION, "strict": False}],
            "tool_choice": "auto",
        },
        {
            **_RESPONSE,
            "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        },
        {
            **_RESPONSE,
            "input": [
                _USER,
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "r"},
            ],
        },
        {
            **_RESPONSE,
            "input": [
                _USER,
                {
                    "type": "reasoning",
                    "id": "r",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "t"}],
                },
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "i",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "a", "annotations": []}],
                },
                _USER,
            ],
        },
        {**_RESPONSE, "include": ["message.output_text.logprobs"], "top_logprobs": 1},
    ),
    "/v1/messages": (
        _MESSAGE,
        {**_MESSAGE, **_STREAM},
        {
            **_MESSAGE,
            "system": "s",
            "tools": [{"name": "f", "description": "d", "input_schema": _PARAMETERS}],
            "tool_choice": {"type": "auto"},
        },
        {
            **_MODEL,
            "max_tokens": 2,
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"city": "a"}}
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}],
                },
            ],
        },
    ),
    "/v1/messages/count_tokens": ({**_MODEL, "messages": [_USER]},),
    "/tokenize": ({**_MODEL, "prompt": "Hi"}, {**_MODEL, "messages": [_USER]}),
    "/detokenize": ({**_MODEL, "tokens": [65]},),
    "/generative_scoring": ({**_MODEL, "query": "q", "items": ["a"], "label_token_ids": [65, 66]},),
    "/v1/decisions": (
        {
            **_MODEL,
            "input": "Hi",
            "questions": [{"type": "predicate", "instructions": "i", "name": "q"}],
        },
        {
            **_MODEL,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "questions": [
                {
                    "type": "choice",
                    "instructions": "i",
                    "choices": [{"value": "a"}, {"value": "b"}],
                },
                {"type": "score", "instructions": "i", "levels": [{"label": "a"}, {"label": "b"}]},
            ],
        },
    ),
    "/v1/systemone": (
        {**_MODEL, "state": "Hi", "questions": {"q": {"type": "predicate", "instructions": "i"}}},
        {
            **_MODEL,
            "state": {"a": 1},
            "questions": {"q": {"type": "choice", "instructions": "i", "criteria": ["a", "b"]}},
        },
    ),
    "/v1/load_lora_adapter": ({"lora_name": "b", "lora_path": ADAPTER},),
    "/v1/unload_lora_adapter": ({"lora_name": ADAPTER_NAME},),
    "/invocations": (_COMPLETION, _CHAT),
    "/abort_requests": ({"request_ids": ["r"]},),
    "/adapters": ({"name": "b", "src": ADAPTER},),
    "/inference/v1/generate": (
        {**_MODEL, "token_ids": [65], "sampling_params": {"max_tokens": 2}},
    ),
}
_IMAGE = {"type": "image_url", "image_url": {"url": _IMAGE_URL}}
_VISION: Mapping[str, tuple[Body, ...]] = {
    "/v1/chat/completions": (
        {
            **_MODEL,
            "max_tokens": 2,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, _IMAGE]}],
        },
    ),
    "/v1/responses": (
        {
            **_RESPONSE,
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": _IMAGE_URL, "detail": "auto"}],
                }
            ],
        },
    ),
    "/v1/messages": (
        {
            **_MODEL,
            "max_tokens": 2,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": _IMAGE_URL.partition(",")[2],
                            },
                        }
                    ],
                }
            ],
        },
    ),
    "/tokenize": ({**_MODEL, "messages": [{"role": "user", "content": [_IMAGE]}]},),
}
_TEXTS = {**_MODEL, "input": "Hi"}
_POOLING: Mapping[str, tuple[Body, ...]] = {
    "/v1/embeddings": (
        _TEXTS,
        {**_MODEL, "input": [[65, 66]], "encoding_format": "base64"},
        {**_MODEL, "messages": [_USER]},
        {**_TEXTS, "dimensions": None, "truncate_prompt_tokens": 1},
    ),
    "/v2/embed": (
        {**_MODEL, "texts": ["Hi"], "input_type": "search_query", "embedding_types": ["float"]},
        {
            **_MODEL,
            "inputs": [{"content": [{"type": "text", "text": "Hi"}]}],
            "input_type": "search_query",
        },
    ),
    "/pooling": (_TEXTS, {**_MODEL, "messages": [_USER]}),
    "/classify": (_TEXTS, {**_MODEL, "messages": [_USER]}),
    "/score": (
        {**_MODEL, "text_1": "a", "text_2": ["b", "c"]},
        {**_MODEL, "queries": "a", "documents": ["b"]},
    ),
    "/rerank": ({**_MODEL, "query": "a", "documents": ["b", "c"], "top_n": 1},),
    "/tokenize": ({**_MODEL, "prompt": "Hi"},),
    "/detokenize": ({**_MODEL, "tokens": [65]},),
    "/invocations": (_TEXTS,),
}
_SPEECH: Mapping[str, tuple[Body, ...]] = {
    "/v1/audio/transcriptions": (
        {**_MODEL, "file": "sound.wav", "language": "en", "response_format": "json"},
        {**_MODEL, "file": "sound.wav", "language": "en", "stream": "true"},
    ),
    "/v1/audio/translations": ({**_MODEL, "file": "sound.wav"},),
}
_ALIASES = {"/v1/score": "/score", "/v1/rerank": "/rerank", "/v2/rerank": "/rerank"}
_OF_SERVER = {"text": _GENERATION, "vision": _VISION, "speech": _SPEECH}


def bases_of(server: str, route: str) -> tuple[Body, ...]:
    """Return valid bodies for a route of a kind of server, the simplest first; empty if none are
    known."""
    return _OF_SERVER.get(server, _POOLING).get(_ALIASES.get(route, route), ())


def routes_of(server: str) -> tuple[str, ...] | None:
    """Return the routes that a kind of server is asked at; None for all."""
    return (
        None
        if server == "text"
        else (*_OF_SERVER.get(server, _POOLING), *(() if server in _OF_SERVER else _ALIASES))
    )
