"""Grammar backends, driven by themselves: a schema becomes a grammar, a grammar says which tokens may come next. No vLLM, no engine.

One module per backend, named after its distribution; each sets the backend up as vLLM does.
"""

import abc
import importlib
import json
import os
from typing import Any, Collection, Dict, List, Optional

from .. import Unsupported

BACKENDS = {
    "lm-format-enforcer": "lmformatenforcer",
    "xgrammar": "xgrammar",
    "llguidance": "llguidance",
    "outlines": "outlines_core",
}
"""Backends by the name that vLLM knows them by, and the package that each one is."""


class Vocabulary:
    """The tokens of a tokenizer.json of byte-level BPE: ``tokens[id]`` are the bytes a token stands for, None for special and unused ones."""

    def __init__(self, path: str, eos: str = "<|im_end|>") -> None:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        special = {token["content"]: token["id"] for token in document["added_tokens"]}
        plain = {text: number for text, number in document["model"]["vocab"].items() if text not in special}
        letters = _letters()
        self.size = max([*special.values(), *plain.values()]) + 1
        self.tokens: List[Optional[bytes]] = [None] * self.size
        for text, number in plain.items():
            self.tokens[number] = bytes(letters[letter] for letter in text)
        self.eos = int(special[eos])
        self.special = sorted(special.values())
        self._ids = {spelt: number for number, spelt in enumerate(self.tokens) if spelt is not None}
        self._longest = max(map(len, self._ids))

    def spell(self, text: str, whole: bool) -> List[int]:
        """Token ids of a text: one token for each byte, or, with ``whole``, the longest token that fits each time. A model may
        generate either, whatever the tokenizer itself would make of the text."""
        data, ids = text.encode(), []
        while data:
            length = next(
                n for n in range(min(len(data), self._longest if whole else 1), 0, -1) if data[:n] in self._ids
            )
            ids.append(self._ids[data[:length]])
            data = data[length:]
        return ids

    def decode(self, ids: List[int]) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD, special tokens nothing."""
        return b"".join(self.tokens[number] or b"" for number in ids).decode("utf-8", "replace")


class Walk(abc.ABC):
    """One way through a grammar, token by token."""

    @abc.abstractmethod
    def allowed(self) -> Collection[int]:
        """Which tokens may come next; the end-of-sequence token among them where the text may end."""

    @abc.abstractmethod
    def advance(self, token: int) -> None:
        """Take one token, which must be allowed."""

    def carried(self) -> "Walk":
        """The same walk after its state went through what the backend offers for sending it: pickle, serialisation, a copy."""
        raise NotImplementedError


class Grammar(abc.ABC):
    """A compiled schema."""

    @abc.abstractmethod
    def walk(self) -> Walk:
        """A walk from the start."""


class Backend(abc.ABC):
    """A backend, ready to compile for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abc.abstractmethod
    def compile(self, schema: Dict[str, Any]) -> Grammar:
        """The grammar of a schema; raises what the backend raises."""

    def refused_at(self, grammar: Grammar, text: str) -> Optional[int]:
        """Where the text is refused when it comes character by character; its length where only its end is refused; None: accepted.

        Backends that know characters say so themselves; for the others a character is its bytes.
        """
        return follow(grammar.walk(), self.vocabulary, text, whole=False)


def follow(walk: Walk, vocabulary: Vocabulary, text: str, whole: bool) -> Optional[int]:
    """Where the mask refuses a text: the index of the first character that is not covered, its length for the end, None for nowhere."""
    taken = 0
    for token in vocabulary.spell(text, whole):
        if token not in walk.allowed():
            return len(text.encode()[:taken].decode("utf-8", "ignore"))
        walk.advance(token)
        taken += len(vocabulary.tokens[token] or b"")
    return None if vocabulary.eos in walk.allowed() else len(text)


def installed(name: str) -> bool:
    """Whether the package of a backend is there."""
    import importlib.util

    return importlib.util.find_spec(BACKENDS[name]) is not None


def load(name: str, vocabulary: Vocabulary) -> Backend:
    """The backend of that name; raises ImportError where it is not installed."""
    module = importlib.import_module("." + name.replace("-", "_"), __name__)
    backend: Backend = module.create(vocabulary)
    return backend


def takes(backend: str, tokenizer: str, schema: Dict[str, Any], text: str) -> bool:
    """Whether the grammar that a backend makes of ``schema`` takes the whole of ``text``, character by character. For probes of cases.

    ``tokenizer``: a checkpoint's path. Raises what the backend raises, and ``Unsupported`` where it is not installed.
    """
    if not installed(backend):
        raise Unsupported("{} is not installed".format(backend), needs=backend)
    working = load(backend, Vocabulary(os.path.join(tokenizer, "tokenizer.json")))
    return working.refused_at(working.compile(schema), text) is None


def bits(words: Any, size: int) -> List[int]:
    """Token ids out of a mask of 32-bit words, lowest bit first."""
    found = []
    for at, word in enumerate(words):
        word &= 0xFFFFFFFF
        while word:
            low = word & -word
            found.append(at * 32 + low.bit_length() - 1)
            word ^= low
    return [number for number in found if number < size]


def _letters() -> Dict[str, int]:
    """The letters by which byte-level BPE writes bytes (GPT-2's table: printable ones stand for themselves, the others follow from 256)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
