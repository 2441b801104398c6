"""Stream a required tool call character by character through vLLM's own function. Runs in the target interpreter."""

import inspect


def streamed(text):
    step = _function()
    returned, parts = False, []
    for end in range(1, len(text) + 1):
        delta, returned = step(text[: end - 1], text[:end], text[end - 1 : end], returned)
        for call in (delta.tool_calls if delta is not None else None) or []:
            parts.append(call.function.arguments or "")
    return "".join(parts)


def _function():
    try:
        from vllm.tool_parsers.streaming import extract_required_tool_call_streaming as function
    except ImportError:
        return _method()

    def step(before, now, delta, returned):
        values = {
            "previous_text": before,
            "current_text": now,
            "delta_text": delta,
            "function_name_returned": returned,
            "tool_call_idx": None,
            "tool_call_id_type": "random",
        }
        known = inspect.signature(function).parameters
        return function(**{name: value for name, value in values.items() if name in known})

    return step


def _method():
    """Return the function of releases in which it is a method of the chat endpoint."""
    try:
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    except ImportError:  # before 0.15
        from vllm.entrypoints.openai.serving_chat import OpenAIServingChat
    serving = object.__new__(OpenAIServingChat)
    serving.tool_call_id_type = "random"
    return serving.extract_tool_call_required_streaming
