"""A checkpoint's tokenizer as data in the structure of tokenizer.json, whatever its file format.

Used by the controller and the target.
"""

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

from . import script_format

MAX_SIZE = 4 << 20  # bytes; larger files are not read
TEKKEN = "tekken.json"
TOKENIZER = "tokenizer.json"


def byte_letters() -> dict[int, str]:
    """Return the printable characters by which GPT-2's tokenizer represents bytes."""
    spelled = {byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    unprintable = (byte for byte in range(256) if byte not in spelled)
    spelled.update({byte: chr(256 + at) for at, byte in enumerate(unprintable)})
    return spelled


def folder_of(name: str) -> str:
    """Return the folder of a checkpoint:

    ``name`` itself if it is one, or where the Hugging Face cache has the files of this name.
    """
    if os.path.isdir(name):
        return name
    try:
        from huggingface_hub import try_to_load_from_cache

        for file in (TOKENIZER, TEKKEN, "config.json"):
            path = try_to_load_from_cache(name, file)
            if isinstance(path, str):
                return os.path.dirname(path)
    except (ImportError, ValueError):  # no such package; not a name of the hub
        pass
    return name


def of_checkpoint(folder: str, mode: str) -> dict[str, Any]:
    """Return ``model.vocab`` and ``added_tokens`` of the tokenizer in ``folder``; empty if there is
    none, or if its file is too large.

    ``mode`` is vLLM's ``tokenizer_mode``. Mistral's own file is read with "mistral", and if there
    is no other.
    """
    plain = os.path.join(folder, TOKENIZER)
    if mode != "mistral" and os.path.isfile(plain):
        return _read(plain)
    own = _read(os.path.join(folder, TEKKEN))
    return _tekken(own) if own else _read(plain)


class Numbers:
    """Translates the tokens of scripts into the numbers of one tokenizer, given by the ``document``
    from ``of_checkpoint``.

    ``added``: the numbers of special tokens and markers by their text. ``first``: the number of
    byte 0; scripts count from it.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        vocabulary = (document.get("model") or {}).get("vocab")
        self.added = {
            token["content"]: int(token["id"]) for token in document.get("added_tokens") or ()
        }
        self.first = (
            int(vocabulary.get(byte_letters()[0], 0)) if isinstance(vocabulary, dict) else 0
        )

    def of(self, answer: script_format.ScriptedAnswer) -> script_format.ScriptedAnswer:
        """Return the answer with this tokenizer's numbers. A name that is not a token here is
        replaced by its bytes.

        Raises ``ValueError`` if that is not possible, because the name is one of several
        alternatives.
        """
        return script_format.ScriptedAnswer(
            tuple(numbered for step in answer.steps for numbered in self._steps(step)), answer.ends
        )

    def _steps(self, step: script_format.Step) -> Iterator[script_format.Step]:
        (name, _), *alternatives = step
        if isinstance(name, str) and name not in self.added and not alternatives:
            for byte in name.encode():
                yield ((self.first + byte, 1.0),)
        else:
            yield tuple((self._number(token), share) for token, share in step)

    def _number(self, token: script_format.Token) -> int:
        if not isinstance(token, str):
            return self.first + token
        if token not in self.added:
            raise ValueError(f"this tokenizer has no token {token!r}")
        return self.added[token]


def _read(path: str) -> dict[str, Any]:
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_SIZE:
        return {}
    with open(path, encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document


def _tekken(document: dict[str, Any]) -> dict[str, Any]:
    """Number the control tokens first, including those without a name, then the vocabulary.

    Its two words for scripts count as added tokens.
    """
    count = int(document["config"]["default_num_special_tokens"])
    names = {
        int(token["rank"]): token["token_str"] for token in document.get("special_tokens") or ()
    }
    added = {names.get(number, f"<SPECIAL_{number}>"): number for number in range(count)}
    alphabet = byte_letters()
    vocabulary = {}
    for token in document["vocab"]:
        word, number = base64.b64decode(token["token_bytes"]), count + int(token["rank"])
        if word in (script_format.START.encode(), script_format.END.encode()):
            added[word.decode()] = number
        else:
            vocabulary["".join(alphabet[byte] for byte in word)] = number
    return {
        "model": {"vocab": vocabulary},
        "added_tokens": [
            {"id": number, "content": text, "special": True} for text, number in added.items()
        ],
    }
