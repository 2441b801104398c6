"""Stream required tool calls through vLLM's own function. Runs in the target interpreter."""

import inspect

from vllm_regress_target import Unsupported


def arguments(text):
    """Return the arguments of each call of ``text``, streamed character by character."""
    function = _function()
    parameters = inspect.signature(function).parameters
    arguments = {}
    name_returned = False
    for end in range(1, len(text) + 1):
        values = {
            "previous_text": text[: end - 1],
            "current_text": text[:end],
            "delta_text": text[end - 1],
            "function_name_returned": name_returned,
            "tool_call_idx": 0,
            "tool_call_id_type": "random",
        }
        delta, name_returned = function(**{name: value for name, value in values.items() if name in parameters})
        for call in (delta.tool_calls or []) if delta else []:
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    return [arguments[index] for index in sorted(arguments)]


def _function():
    try:
        from vllm.tool_parsers import streaming

        return streaming.extract_required_tool_call_streaming
    except (ImportError, AttributeError):
        pass
    try:  # from 0.15
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat as endpoint
    except ImportError:
        from vllm.entrypoints.openai.serving_chat import OpenAIServingChat as endpoint
    if not hasattr(endpoint, "extract_tool_call_required_streaming"):
        raise Unsupported("no function that streams required tool calls", since="0.8.3")
    instance = object.__new__(endpoint)  # the function reads only this attribute
    instance.tool_call_id_type = "random"
    return instance.extract_tool_call_required_streaming
