"""Grammar backends without vLLM: they compile a schema into a grammar, which decides which tokens may come next.

There is one module per backend, named after its distribution. Each configures the backend as vLLM does.
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
"""The import name of each backend, by the name vLLM uses for it."""


class Vocabulary:
    """The tokens of a byte-level BPE tokenizer.json. ``tokens[id]`` are the bytes of a token; None for special and unused tokens."""

    def __init__(self, path: str, eos: str = "<|im_end|>") -> None:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        special = {token["content"]: token["id"] for token in document["added_tokens"]}
        plain = {text: number for text, number in document["model"]["vocab"].items() if text not in special}
        letters = _bytes_by_letter()
        self.size = max([*special.values(), *plain.values()]) + 1
        self.tokens: List[Optional[bytes]] = [None] * self.size
        for text, number in plain.items():
            self.tokens[number] = bytes(letters[letter] for letter in text)
        self.eos = int(special[eos])
        self.special = sorted(special.values())
        self._ids = {token: number for number, token in enumerate(self.tokens) if token is not None}
        self._longest = max(map(len, self._ids))

    def encode(self, text: str, whole: bool) -> List[int]:
        """Return token ids for a text: one token per byte, or with ``whole`` the longest matching token each time.

        A model may generate either, however the tokenizer itself would encode the text.
        """
        data, ids = text.encode(), []
        while data:
            length = next(
                n for n in range(min(len(data), self._longest if whole else 1), 0, -1) if data[:n] in self._ids
            )
            ids.append(self._ids[data[:length]])
            data = data[length:]
        return ids

    def decode(self, ids: List[int]) -> str:
        """Return the text of token ids. Invalid UTF-8 becomes U+FFFD, special tokens disappear."""
        return b"".join(self.tokens[number] or b"" for number in ids).decode("utf-8", "replace")


class Walk(abc.ABC):
    """A path through a grammar, token by token."""

    @abc.abstractmethod
    def allowed(self) -> Collection[int]:
        """Return the tokens that may come next, including the end-of-sequence token if the text may end."""

    @abc.abstractmethod
    def advance(self, token: int) -> None:
        """Append one token, which must be allowed."""

    def transferred(self) -> "Walk":
        """Return the same walk after a transfer of its state by the means the backend offers: pickle, serialisation or a copy.

        Raises ``NotImplementedError`` if the backend offers none.
        """
        raise NotImplementedError


class Grammar(abc.ABC):
    """A compiled schema."""

    @abc.abstractmethod
    def walk(self) -> Walk:
        """Return a walk at the start of the grammar."""


class Backend(abc.ABC):
    """A backend that is ready to compile grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abc.abstractmethod
    def compile(self, schema: Dict[str, Any]) -> Grammar:
        """Compile a schema. Raises the backend's exceptions."""

    def refused_at(self, grammar: Grammar, text: str) -> Optional[int]:
        """Return the index at which a text is refused character by character; its length if only its end is refused; None if accepted.

        Backends that work on characters override this method. The others get each character as its bytes.
        """
        return first_refused_index(grammar.walk(), self.vocabulary, text, whole=False)


def first_refused_index(walk: Walk, vocabulary: Vocabulary, text: str, whole: bool) -> Optional[int]:
    """Return the index of the first character that the mask refuses; the text's length if it refuses the end; None if it accepts."""
    length = 0
    for token in vocabulary.encode(text, whole):
        if token not in walk.allowed():
            return len(text.encode()[:length].decode("utf-8", "ignore"))
        walk.advance(token)
        length += len(vocabulary.tokens[token] or b"")
    return None if vocabulary.eos in walk.allowed() else len(text)


def installed(name: str) -> bool:
    """Whether the package of a backend is installed."""
    import importlib.util

    return importlib.util.find_spec(BACKENDS[name]) is not None


def load(name: str, vocabulary: Vocabulary) -> Backend:
    """Load a backend. Raises ImportError if it is not installed."""
    module = importlib.import_module("." + name.replace("-", "_"), __name__)
    backend: Backend = module.create(vocabulary)
    return backend


def accepts(backend: str, tokenizer: str, schema: Dict[str, Any], text: str) -> bool:
    """Whether the backend's grammar of ``schema`` accepts the whole ``text``, character by character. For probes of cases.

    ``tokenizer`` is the path of a checkpoint. Raises the backend's exceptions, and ``Unsupported`` if it is not installed.
    """
    if not installed(backend):
        raise Unsupported("{} is not installed".format(backend), needs=backend)
    loaded = load(backend, Vocabulary(os.path.join(tokenizer, "tokenizer.json")))
    return loaded.refused_at(loaded.compile(schema), text) is None


def unpack_bitmask(words: Any, size: int) -> List[int]:
    """Return the token ids in a mask of 32-bit words, lowest bit first."""
    ids = []
    for index, word in enumerate(words):
        word &= 0xFFFFFFFF
        while word:
            low = word & -word
            ids.append(index * 32 + low.bit_length() - 1)
            word ^= low
    return [number for number in ids if number < size]


def _bytes_by_letter() -> Dict[str, int]:
    """Return the character that byte-level BPE writes for each byte, from GPT-2's table.

    Printable bytes stand for themselves; the others are numbered from 256.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
