"""Logits as a pure function of a request's tokens, in place of a neural network.

The same history gives the same logits in every process, engine generation and vLLM version.
Temperature 0 is therefore exactly reproducible, and preemption, chunked prefill and prefix caching
cannot change an output.

Logits are normal noise with biases that imitate a trained network. Outputs end now and then. Quotes
and brackets close soon, because a random walk under a JSON grammar would rarely end otherwise.
Control characters and invalid UTF-8 are rare. Special tokens other than the end-of-text token, and
padding of the vocabulary, are almost never drawn. A temperature of 2 brings the rare tokens back.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from .. import script_format, vocabularies

ENDING = 1.0 / 40  # fraction of rows that favour the end of the text
ENDING_VARIABLE = "VLLM_REGRESS_SIM_ENDING"  # another fraction, for tests that expect the longer texts of trained models
CLOSING = {'"': 2.5, "}": 2.5, "]": 2.5, ",": 1.0, "{": -2.0, "[": -2.0}
CONTROL = -7.0  # a byte below 0x20, or DEL
HIGH = -5.0  # a single byte above 0x7f, most often invalid UTF-8
SPECIAL = -20.0


class SyntheticLogits:
    """Draws logits for one model configuration. A row holds the logits of one position.

    Attributes:
        vocab_size: size of the model's vocabulary, which may be larger than the tokenizer's.
        end: the token that ends a text.
    """

    def __init__(self, model_config: Any) -> None:
        self.vocab_size = int(model_config.get_vocab_size())
        self._ends = [token for token in _end_tokens(model_config) if 0 <= token < self.vocab_size]
        self.end = self._ends[0] if self._ends else 0
        self._ending = float(os.environ.get(ENDING_VARIABLE, ENDING))
        self._bias = np.zeros(self.vocab_size, dtype=np.float32)
        self._root = hashlib.blake2b(b"vllm-regress %d" % self.vocab_size, digest_size=8)
        biases = dict(_token_biases(tokenizer_of(model_config)))
        for token in range(self.vocab_size if biases else 0):
            if token not in self._ends:
                self._bias[token] = biases.get(
                    token, SPECIAL
                )  # tokens that the tokenizer does not have are padding

    def after(self, tokens: Sequence[int], adapter: bytes = b"") -> np.ndarray:
        """Return the row after all `tokens`. `adapter` is the digest of the LoRA adapter."""
        state = self._root.copy()
        state.update(adapter)
        state.update(np.asarray(tokens, dtype=np.int64).tobytes())
        return self._row(int.from_bytes(state.digest(), "little"))

    def within(self, tokens: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Return the rows after tokens[:start + 1] to tokens[:stop], one for each position from
        start to stop - 1."""
        history = np.asarray(tokens, dtype=np.int64)
        state = self._root.copy()
        state.update(history[:start].tobytes())
        rows = []
        for position in range(start, stop):
            state.update(history[position].tobytes())
            rows.append(self._row(int.from_bytes(state.digest(), "little")))
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), dtype=np.float32)

    def pooled(self, tokens: Sequence[int], size: int) -> np.ndarray:
        """Return `size` numbers for a whole prompt: the sum of its tokens' numbers, plus a small
        part that depends on their order."""
        total = 0.1 * self._noise(tokens, size)
        for token in tokens:
            total += self._noise([token], size)
        return total

    def last(self, tokens: Sequence[int], size: int) -> np.ndarray:
        """Return `size` numbers for the last of `tokens`: its own numbers, plus a small part that
        depends on the tokens before it."""
        return self._noise(tokens[-1:], size) + 0.1 * self._noise(tokens, size)

    def stack(self, rows: list[np.ndarray]) -> torch.Tensor:
        """Return rows as the float32 tensor that vLLM's samplers take and may overwrite."""
        if not rows:
            return torch.zeros((0, self.vocab_size), dtype=torch.float32)
        return torch.from_numpy(np.stack(rows))

    def blank(self) -> np.ndarray:
        """Return a row for a request whose token will be discarded."""
        return np.zeros(self.vocab_size, dtype=np.float32)

    def _noise(self, tokens: Sequence[int], size: int) -> np.ndarray:
        state = self._root.copy()
        state.update(np.asarray(tokens, dtype=np.int64).tobytes())
        generator = np.random.Generator(
            np.random.Philox(key=int.from_bytes(state.digest(), "little"))
        )
        return generator.standard_normal(size, dtype=np.float32)

    def _row(self, seed: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=seed))
        row: np.ndarray = generator.standard_normal(self.vocab_size, dtype=np.float32)
        row += self._bias
        if self._ends and (seed >> 16) % 997 < 997 * self._ending:
            row[self._ends[0]] = row.max() + 2.0
        return row


def _end_tokens(model_config: Any) -> list[int]:
    for config in (getattr(model_config, "hf_text_config", None), model_config.hf_config):
        ends = getattr(config, "eos_token_id", None)
        if ends is not None:
            return [int(end) for end in ends] if isinstance(ends, (list, tuple)) else [int(ends)]
    return []


def tokenizer_of(model_config: Any) -> dict[str, Any]:
    """Return the model's tokenizer in the format of tokenizer.json; empty if there is none or it is
    too large. All tokens are then drawn alike."""
    folder = str(getattr(model_config, "tokenizer", None) or model_config.model)
    return vocabularies.of_checkpoint(
        vocabularies.folder_of(folder), str(getattr(model_config, "tokenizer_mode", "auto"))
    )


def _token_biases(tokenizer: dict[str, Any]) -> Iterable[Any]:
    """Yield (token, bias) for every token of the tokenizer."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict):
        for text, token in vocabulary.items():
            yield token, CLOSING.get(text) or _rarity(text)
        added = tokenizer.get("added_tokens") or []
        forged = any(
            token["content"] == script_format.START for token in added
        )  # forged tokenizers have markers that only scripts may use
        for token in added:
            yield token["id"], SPECIAL if forged or token.get("special") else 0.0


def _rarity(text: str) -> float:
    """Return the bias of a token.

    It matters for single characters of byte-level BPE, where U+0100 to U+0143 stand for unprintable
    bytes, and for SentencePiece's bytes.
    """
    if re.fullmatch("<0x[0-9A-F]{2}>", text):
        return HIGH
    return 0.0 if len(text) != 1 or "!" <= text <= "~" else _rarity_of(text)


def _rarity_of(character: str) -> float:
    if "\u0100" <= character <= "\u0143":
        byte = ord(character) - 0x100
        return 0.0 if byte == 0x20 else CONTROL if byte <= 0x21 else HIGH
    return HIGH if "\u00a1" <= character <= "\u00ff" else 0.0


def prompt_tokens(tokens: Any, embeddings: Any, are_tokens: Any = None) -> list[int]:
    """Return the prompt as numbers: token ids, and negative numbers for embeddings. Equal
    embeddings have equal numbers.

    `are_tokens` says which positions are tokens, if both are given.
    """
    if embeddings is None:
        return list(tokens)
    rows: list[int] = []
    for row in embeddings.detach().to(torch.float32).contiguous().numpy():
        digest = hashlib.blake2b(row.tobytes(), digest_size=7).digest()
        rows.append(-1 - int.from_bytes(digest, "little"))
    if tokens is None or are_tokens is None:
        return rows
    return [token if is_token else row for token, is_token, row in zip(tokens, are_tokens, rows)]


def with_media(tokens: list[int], media: Iterable[tuple[int, int, Any]]) -> list[int]:
    """Return a prompt in which the positions of images and sounds, given as first position, number
    and content (a hash, or tensors), have negative numbers that depend on the content: other pixels, another answer.

    Positions beyond the prompt are those of an encoder: they leave the decoder's prompt alone.
    """
    for first, count, content in media:
        if first + count > len(tokens):
            continue
        digest = hashlib.blake2b(_bytes(content), digest_size=7).digest()
        number = int.from_bytes(digest, "little")
        tokens[first : first + count] = [-1 - number] * count
    return tokens


def _bytes(content: Any) -> bytes:
    """Return what a hash, or tensors in mappings and lists, contain."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, torch.Tensor):
        return bytes(content.detach().to(torch.float32).cpu().contiguous().numpy().tobytes())
    if hasattr(content, "items"):
        return b"".join(_bytes(item) for _, item in sorted(content.items()))
    return b"".join(map(_bytes, content)) if isinstance(content, (list, tuple)) else b""
