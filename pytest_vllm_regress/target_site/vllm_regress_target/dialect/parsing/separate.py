"""The server of releases before ``Parser.parse_delta``: it calls a tool parser and a reasoning
parser itself, and changes the last delta."""

import inspect
import json
from typing import Any, Iterable, List, Optional, Tuple

from .client import Client, Delta, Json, answer, first_module

_SERVERS = (
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.serving_chat",
)
_MESSAGES = (
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.openai.engine.protocol",
    "vllm.entrypoints.openai.protocol",
)


class Separate:
    """A tool parser and a reasoning parser, called as the older server's
    ``chat_completion_stream_generator`` calls them."""

    def __init__(self, tool: Any, reasoning: Any, encoder: Any, prompt: List[int]) -> None:
        self._tool, self._reasoning, self._encoder, self._prompt = tool, reasoning, encoder, prompt
        server = first_module(_SERVERS).OpenAIServingChat
        # Before 0.9 a last delta that the parser answers with None left the stream without a finish
        # reason.
        self._always_ends = "delta_message = DeltaMessage()" in inspect.getsource(server)

    def _new_tool(self, request: Any) -> Any:
        if self._tool is None:
            return None
        takes_tools = "tools" in inspect.signature(self._tool.__init__).parameters
        return (
            self._tool(self._encoder, request.tools) if takes_tools else self._tool(self._encoder)
        )

    def _new_reasoning(self, request: Any) -> Any:
        if self._reasoning is None:
            return None
        parameters = inspect.signature(self._reasoning.__init__).parameters.values()
        takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        # A copy: some parsers remove what they read, and a server has a new request each time.
        template_options = dict(getattr(request, "chat_template_kwargs", None) or {})
        options = {"chat_template_kwargs": template_options} if takes_more else {}
        return self._reasoning(self._encoder, **options)

    def whole(self, text: str, ids: List[int], request: Any) -> Json:
        reasoning: Optional[str] = None
        content: Optional[str] = text
        calls: List[Any] = []
        thinker, tool = self._new_reasoning(request), self._new_tool(request)
        if thinker is not None:
            extract = (
                getattr(thinker, "extract_reasoning", None) or thinker.extract_reasoning_content
            )
            reasoning, content = extract(text, request=request)
        if tool is not None:
            found = tool.extract_tool_calls(content or "", request=request)
            if found is not None and found.tools_called:
                content, calls = found.content, found.tool_calls
        return answer(
            reasoning, content, [(call.function.name, call.function.arguments) for call in calls]
        )

    def stream(self, deltas: Iterable[Delta], request: Any) -> Json:
        tool, client = self._new_tool(request), Client()
        steps = _Steps(tool, self._new_reasoning(request), self._prompt, request)
        for delta in deltas:
            message = steps.message(delta)
            if message is None:
                client.finished = delta.last and self._always_ends
                continue
            if delta.last:
                client.finished = True
                message = _with_rest(tool, message)
            client.add(message)
        return client.answer()


class _Steps:
    """One stream through separate parsers: which of them gets the next delta, and with which texts."""

    def __init__(self, tool: Any, reasoning: Any, prompt: List[int], request: Any) -> None:
        self._tool, self._reasoning, self._prompt, self._request = tool, reasoning, prompt, request
        self._text = ""
        self._ids: List[int] = []
        self._reasoning_ended, self._calls_begun = False, False
        self._think = reasoning and (
            getattr(reasoning, "extract_reasoning_streaming", None)
            or reasoning.extract_reasoning_content_streaming
        )

    def message(self, delta: Delta) -> Any:
        """Return what the parsers make of the next delta."""
        before, ids_before = self._text, self._ids
        text, ids = before + delta.text, ids_before + delta.ids
        if self._tool is not None and self._reasoning is not None:
            message, text, ids = self._both(before, ids_before, text, ids, delta)
        elif self._tool is not None:
            message = self._tool.extract_tool_calls_streaming(
                previous_text=before,
                current_text=text,
                delta_text=delta.text,
                previous_token_ids=ids_before,
                current_token_ids=ids,
                delta_token_ids=delta.ids,
                request=self._request,
            )
        else:
            message = self._think(before, text, delta.text, ids_before, ids, delta.ids)
        self._text, self._ids = text, ids
        return message

    def _both(
        self, before: str, ids_before: List[int], text: str, ids: List[int], delta: Delta
    ) -> Tuple[Any, str, List[int]]:
        if not self._reasoning_ended:
            message = self._think(before, text, delta.text, ids_before, ids, delta.ids)
            in_prompt = self._reasoning.is_reasoning_end(self._prompt)
            if in_prompt or self._reasoning.is_reasoning_end(list(delta.ids)):
                self._reasoning_ended = True
                ids = (
                    delta.ids if in_prompt else self._reasoning.extract_content_ids(list(delta.ids))
                )
                text = (message.content if message else None) or ""
                if message and message.content:
                    message.content = None
            return message, text, ids
        delta_text, delta_ids = delta.text, delta.ids
        if not self._calls_begun:
            self._calls_begun = True
            before, ids_before, delta_text, delta_ids = "", [], text, ids
        message = self._tool.extract_tool_calls_streaming(
            previous_text=before,
            current_text=text,
            delta_text=delta_text,
            previous_token_ids=ids_before,
            current_token_ids=ids,
            delta_token_ids=delta_ids,
            request=self._request,
        )
        return message, text, ids


def _with_rest(tool: Any, message: Any) -> Any:
    """Return the last message as the server sends it: with arguments, it is replaced by what of the
    last call was not streamed yet."""
    if tool is None or not message.tool_calls:
        return message
    function = message.tool_calls[0].function
    arguments = (
        function.get("arguments")
        if isinstance(function, dict)
        else getattr(function, "arguments", None)
    )
    if arguments is None:
        return message
    remaining = getattr(tool, "get_remaining_unstreamed_args", None)
    if remaining is not None:  # releases that append
        last = message.tool_calls[-1].function
        if last:
            last.arguments = (last.arguments or "") + remaining()
        return message
    index = max(len(tool.prev_tool_call_arr) - 1, 0)
    expected = json.dumps(tool.prev_tool_call_arr[index].get("arguments", {}), ensure_ascii=False)
    actual = tool.streamed_args_for_tool[index]
    if arguments and not isinstance(function, dict):
        actual = actual[: -len(arguments)]
    messages = first_module(_MESSAGES)
    rest = messages.DeltaFunctionCall(arguments=expected.replace(actual, "", 1)).model_dump(
        exclude_none=True
    )
    return messages.DeltaMessage(tool_calls=[messages.DeltaToolCall(index=index, function=rest)])
