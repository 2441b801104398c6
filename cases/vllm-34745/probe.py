"""Translate a request of /v1/messages into a chat request, as vLLM does. Runs in the target interpreter."""

import importlib

from vllm_regress_target import Unsupported


def chat_messages(messages):
    request = _class("protocol", "AnthropicMessagesRequest")(model="m", max_tokens=4, messages=messages)
    serving = _class("serving", "AnthropicServingMessages", "serving_messages")
    if hasattr(serving, "to_chat_completion_request"):
        chat = serving.to_chat_completion_request(request)
    else:
        convert = serving.__dict__["_convert_anthropic_to_openai_request"]
        chat = convert.__get__(None, serving)(request) if isinstance(convert, classmethod) else convert(None, request)
    return [dict(message) for message in chat.model_dump(mode="json")["messages"]]


def _class(module, name, older=None):
    for place in filter(None, (module, older)):
        try:
            return getattr(importlib.import_module("vllm.entrypoints.anthropic." + place), name)
        except ImportError:
            continue
    raise Unsupported("this vLLM has no /v1/messages", since="0.11.1")
