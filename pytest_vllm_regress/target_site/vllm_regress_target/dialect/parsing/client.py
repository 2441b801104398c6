"""What a client of the server sees: the messages of a stream, added up."""

import importlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ... import Unsupported
from ..installed import version

Json = Dict[str, Any]


class Delta(NamedTuple):
    """What the engine hands to the server at once: text, the ids of its tokens, and whether the
    answer ends with it."""

    text: str
    ids: List[int]
    last: bool


class Client:
    """Adds the messages of a stream up as a client does: calls by their index."""

    def __init__(self) -> None:
        self.reasoning, self.content, self.finished = "", "", False
        self.calls: Dict[int, List[str]] = {}

    def add(self, message: Any) -> None:
        if message is None:
            return
        self.reasoning += (
            getattr(message, "reasoning", None) or getattr(message, "reasoning_content", None) or ""
        )
        self.content += message.content or ""
        for call in message.tool_calls or ():
            function = call.function
            if isinstance(function, dict):
                name, arguments = function.get("name"), function.get("arguments")
            else:
                name, arguments = (
                    (function.name, function.arguments) if function is not None else (None, None)
                )
            parts = self.calls.setdefault(call.index, ["", ""])
            parts[0] += name or ""
            parts[1] += arguments or ""

    def answer(self) -> Json:
        calls = [(name, arguments) for _, (name, arguments) in sorted(self.calls.items())]
        return answer(self.reasoning, self.content, calls, self.finished)


def answer(
    reasoning: Optional[str], content: Optional[str], calls: List[Any], finished: bool = True
) -> Json:
    """Return an answer as JSON: texts, the name and the arguments of each call, and whether a
    finish reason came."""
    return {
        "reasoning": reasoning or "",
        "content": content or "",
        "calls": [[name or "", arguments or ""] for name, arguments in calls],
        "finished": finished,
    }


def first_module(names: Tuple[str, ...]) -> Any:
    """Return the first of these modules that there is and that is the one that defines the names of
    its generation."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise Unsupported(
        "this vLLM has none of {}".format(", ".join(names)), refused_by="vLLM {}".format(version())
    )
