"""A checkpoint's tokenizer as data: whatever its file, in the words of tokenizer.json. Standard library only; both sides use it."""

import base64
import json
import os
from typing import Any, Dict, Iterator

from . import script

LARGEST = 4 << 20  # bytes; a larger file is not read
TEKKEN = "tekken.json"
TOKENIZER = "tokenizer.json"


def letters() -> Dict[int, str]:
    """The printable alphabet in which GPT-2's tokenizer writes bytes."""
    spelled = {byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = (byte for byte in range(256) if byte not in spelled)
    spelled.update({byte: chr(256 + at) for at, byte in enumerate(others)})
    return spelled


def of_checkpoint(folder: str, mode: str) -> Dict[str, Any]:
    """``model.vocab`` and ``added_tokens`` of the tokenizer in ``folder``; empty where there is none, or none small enough.

    ``mode`` is vLLM's ``tokenizer_mode``: with "mistral", and where there is nothing else, Mistral's own file counts.
    """
    plain = os.path.join(folder, TOKENIZER)
    if mode != "mistral" and os.path.isfile(plain):
        return _read(plain)
    own = _read(os.path.join(folder, TEKKEN))
    return _tekken(own) if own else _read(plain)


class Numbers:
    """What a script's tokens are in one tokenizer, of which ``document`` is what ``of_checkpoint`` read.

    ``added``: the numbers of special tokens and markers by their texts. ``first``: the number of byte 0, from which scripts count.
    """

    def __init__(self, document: Dict[str, Any]) -> None:
        vocabulary = (document.get("model") or {}).get("vocab")
        self.added = {each["content"]: int(each["id"]) for each in document.get("added_tokens") or ()}
        self.first = int(vocabulary.get(letters()[0], 0)) if isinstance(vocabulary, dict) else 0

    def of(self, answer: script.Answer) -> script.Answer:
        """The answer in this tokenizer's numbers; a name that is no token here is said byte by byte. Raises ``ValueError`` where it cannot be."""
        return script.Answer(tuple(own for step in answer.steps for own in self._steps(step)), answer.ends)

    def _steps(self, step: script.Step) -> Iterator[script.Step]:
        (name, _), *others = step
        if isinstance(name, str) and name not in self.added and not others:
            for byte in name.encode():
                yield ((self.first + byte, 1.0),)
        else:
            yield tuple((self._number(token), share) for token, share in step)

    def _number(self, token: script.Token) -> int:
        if not isinstance(token, str):
            return self.first + token
        if token not in self.added:
            raise ValueError("this tokenizer has no token {!r}".format(token))
        return self.added[token]


def _read(path: str) -> Dict[str, Any]:
    if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
        return {}
    with open(path, encoding="utf-8") as file:
        document: Dict[str, Any] = json.load(file)
    return document


def _tekken(document: Dict[str, Any]) -> Dict[str, Any]:
    """Control tokens first, those without a name included; then the vocabulary, whose two words for scripts are no ordinary ones."""
    count = int(document["config"]["default_num_special_tokens"])
    names = {int(each["rank"]): each["token_str"] for each in document.get("special_tokens") or ()}
    added = {names.get(number, "<SPECIAL_{}>".format(number)): number for number in range(count)}
    alphabet = letters()
    vocabulary = {}
    for each in document["vocab"]:
        word, number = base64.b64decode(each["token_bytes"]), count + int(each["rank"])
        if word in (script.START.encode(), script.END.encode()):
            added[word.decode()] = number
        else:
            vocabulary["".join(alphabet[byte] for byte in word)] = number
    return {
        "model": {"vocab": vocabulary},
        "added_tokens": [{"id": number, "content": text, "special": True} for text, number in added.items()],
    }
