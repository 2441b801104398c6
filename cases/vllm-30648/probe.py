"""The messages that vLLM hands to a chat template. Runs in the target interpreter."""

import importlib

MODULES = ("vllm.renderers.chat_utils.chat_message", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")


def prepared(message):
    """Return the message after the step in which vLLM prepares the tool calls of a conversation for the template."""
    messages = [message]
    _function("_postprocess_messages")(messages)
    return messages[0]


def _function(name):
    for module in MODULES:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    raise LookupError(name)
