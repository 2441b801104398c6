"""The message that vLLM makes of a tool's result. Runs in the target interpreter."""

import importlib
import inspect
from unittest.mock import MagicMock

MODULES = ("vllm.renderers.chat_utils.chat_message", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")


def parsed(content):
    """Return the message for a chat template that expects lists of parts ("openai"), of a tool's result with this content."""
    parse = _function("_parse_chat_message_content") or _function("parse_chat_message_content")
    message = {"role": "tool", "tool_call_id": "1", "content": content}
    values = {"message": message, "mm_tracker": MagicMock(), "content_format": "openai", "interleave_strings": False}
    known = inspect.signature(parse).parameters
    extra = {name: None for name, value in known.items() if value.default is value.empty and name not in values}
    (result,) = parse(**{name: value for name, value in values.items() if name in known}, **extra)
    return {"role": result["role"], "content": result["content"]}


def _function(name):
    for module in MODULES:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    return None
