"""Asks the parsers of the installed vLLM: what a text means as a whole, and in each of several cuts
into deltas.

Its functions are called in a probe process. Exceptions of parsers are answers.
"""

import json
import logging
import time
import traceback
from functools import lru_cache
from typing import Any

from ..dialect import parsing
from ..dialect.parsing import Delta

Json = dict[str, Any]
PROMPT = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"


class Encoder:
    """A tokenizer that caches the token ids of each piece of text."""

    def __init__(self, path: str) -> None:
        self.tokenizer = parsing.tokenizer(path)
        self._ids: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text.

        Cached, because drawn texts consist of few distinct pieces.
        """
        if text not in self._ids:
            if len(self._ids) > 50000:
                self._ids.clear()
            self._ids[text] = list(self.tokenizer.encode(text, add_special_tokens=False))
        return self._ids[text]


_encoder = lru_cache(maxsize=None)(Encoder)


def registered() -> Json:
    """Return the registered parsers (``dialect.parsing.registered``)."""
    logging.disable(logging.CRITICAL)
    return parsing.registered()


def ask(
    tool: str, reasoning: str, tokenizer: str, tools: list[Json], questions: list[Json]
) -> Json:
    """Return the answers to ``questions``, each with ``text``, ``cuts``, ``ends``, ``options`` and
    ``prompt``.

    A cut is a list of pieces of the text. Its member of ``ends`` tells whether the end-of-sequence
    token comes alone, in a delta without text, or with the last piece. ``options`` are those of the
    chat template, and ``prompt`` is what it writes behind the header of the answer.

    The reply has ``seconds`` in which the parsers worked, the number of ``deltas``, and for each
    question ``whole`` and ``streams``: answers (``dialect.parsing.answer``), or ``error`` with
    type, message and where it was raised.
    """
    logging.disable(logging.CRITICAL)  # parsers log each exception that they catch
    encoder = _encoder(tokenizer)

    @lru_cache(maxsize=None)
    def parsers_after(prompt: str) -> Any:
        ids = encoder.ids(PROMPT + prompt)
        return parsing.parsing(tool or None, reasoning or None, encoder.tokenizer, ids)

    @lru_cache(maxsize=None)
    def request_with(options: str) -> Any:
        return parsing.request(tools, json.loads(options))

    answers, deltas, began = [], 0, time.perf_counter()
    for question in questions:
        request = request_with(json.dumps(question["options"], sort_keys=True))
        parsers = parsers_after(question["prompt"])
        whole = _guarded(parsers.whole, question["text"], encoder.ids(question["text"]), request)
        streams = []
        for pieces, alone in zip(question["cuts"], question["ends"]):
            parts = _deltas(encoder, pieces, alone)
            deltas += len(parts)
            streams.append(_guarded(parsers.stream, parts, request))
        answers.append({"whole": whole, "streams": streams})
    return {"answers": answers, "deltas": deltas, "seconds": time.perf_counter() - began}


def _deltas(encoder: Encoder, pieces: list[str], alone: bool) -> list[Delta]:
    deltas = [Delta(piece, encoder.ids(piece), False) for piece in pieces]
    end = encoder.ids(END)
    if alone or not deltas:
        return [*deltas, Delta("", end, True)]
    return [*deltas[:-1], Delta(deltas[-1].text, deltas[-1].ids + end, True)]


def _guarded(function: Any, *arguments: Any) -> Json:
    try:
        answer: Json = function(*arguments)
        return answer
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        return {"error": [type(error).__name__, str(error)[:500], _where(error)]}


def _where(error: BaseException) -> str:
    """Return the innermost function of vLLM in which an exception was raised, without line numbers,
    which change with every release."""
    frames: list[tuple[str, str]] = [
        (frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)
    ]
    own = [(file, name) for file, name in frames if "/vllm/" in file]
    if not own:
        return ""
    file, name = own[-1]
    return "{} in {}".format(name, file.rpartition("/vllm/")[2])
