"""The stand-in for the network: logits as a pure function of a request's tokens.

The same history gives the same row in every process, engine generation and vLLM version, so that temperature 0 repeats exactly,
and preemption, chunked prefill and prefix caching cannot change an output. Rows are normal noise, bent as training bends a
network: outputs end now and then, quotes and brackets close soon (else a random walk under a JSON grammar seldom ends), control
characters and broken UTF-8 are rare; special tokens other than the end-of-text one, and padding of the vocabulary, are all but
never drawn. A temperature of 2 brings the rare tokens back.
"""

import hashlib
import re
from typing import Any, Dict, Iterable, List, Sequence

import numpy as np
import torch

from .. import script, vocabularies

ENDING = 1.0 / 40  # how often a row favours the end of the text
CLOSING = {'"': 2.5, "}": 2.5, "]": 2.5, ",": 1.0, "{": -2.0, "[": -2.0}
CONTROL = -7.0  # a byte below 0x20, or DEL
HIGH = -5.0  # a lone byte above 0x7f, most often broken UTF-8
SPECIAL = -20.0


class Draw:
    """Draws logits rows for one model configuration.

    Attributes:
        vocab_size: the width of a row: the model's vocabulary, which may be wider than the tokenizer's.
        end: the token that ends a text.
    """

    def __init__(self, model_config: Any) -> None:
        self.vocab_size = int(model_config.get_vocab_size())
        self._ends = [token for token in _end_tokens(model_config) if 0 <= token < self.vocab_size]
        self.end = self._ends[0] if self._ends else 0
        self._bias = np.zeros(self.vocab_size, dtype=np.float32)
        self._root = hashlib.blake2b(b"vllm-regress %d" % self.vocab_size, digest_size=8)
        biases = dict(_token_biases(tokenizer_of(model_config)))
        for token in range(self.vocab_size if biases else 0):
            if token not in self._ends:
                self._bias[token] = biases.get(token, SPECIAL)  # what the tokenizer does not have is padding

    def after(self, tokens: Sequence[int], adapter: bytes = b"") -> np.ndarray:
        """The row that follows the whole of `tokens`; `adapter` tells a LoRA adapter from others."""
        state = self._root.copy()
        state.update(adapter)
        state.update(np.asarray(tokens, dtype=np.int64).tobytes())
        return self._row(int.from_bytes(state.digest(), "little"))

    def within(self, tokens: Sequence[int], start: int, stop: int) -> np.ndarray:
        """The rows that follow tokens[:start + 1] to tokens[:stop], one for each position in start..stop-1."""
        history = np.asarray(tokens, dtype=np.int64)
        state = self._root.copy()
        state.update(history[:start].tobytes())
        rows = []
        for position in range(start, stop):
            state.update(history[position].tobytes())
            rows.append(self._row(int.from_bytes(state.digest(), "little")))
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), dtype=np.float32)

    def pooled(self, tokens: Sequence[int], size: int) -> np.ndarray:
        """`size` numbers for a whole prompt: the sum of its tokens' own, and a little that depends on their order."""
        total = 0.1 * self._noise(tokens, size)
        for token in tokens:
            total += self._noise([token], size)
        return total

    def last(self, tokens: Sequence[int], size: int) -> np.ndarray:
        """`size` numbers for the last of `tokens`: its own, and a little that depends on those before it."""
        return self._noise(tokens[-1:], size) + 0.1 * self._noise(tokens, size)

    def stack(self, rows: List[np.ndarray]) -> torch.Tensor:
        """Rows as the float32 tensor that vLLM's samplers take, and may overwrite."""
        if not rows:
            return torch.zeros((0, self.vocab_size), dtype=torch.float32)
        return torch.from_numpy(np.stack(rows))

    def blank(self) -> np.ndarray:
        """A row for a request whose token will be thrown away."""
        return np.zeros(self.vocab_size, dtype=np.float32)

    def _noise(self, tokens: Sequence[int], size: int) -> np.ndarray:
        state = self._root.copy()
        state.update(np.asarray(tokens, dtype=np.int64).tobytes())
        drawn = np.random.Generator(np.random.Philox(key=int.from_bytes(state.digest(), "little")))
        return drawn.standard_normal(size, dtype=np.float32)

    def _row(self, seed: int) -> np.ndarray:
        noise = np.random.Generator(np.random.Philox(key=seed))
        row: np.ndarray = noise.standard_normal(self.vocab_size, dtype=np.float32)
        row += self._bias
        if self._ends and (seed >> 16) % 997 < 997 * ENDING:
            row[self._ends[0]] = row.max() + 2.0
        return row


def _end_tokens(model_config: Any) -> List[int]:
    for config in (getattr(model_config, "hf_text_config", None), model_config.hf_config):
        ends = getattr(config, "eos_token_id", None)
        if ends is not None:
            return [int(end) for end in ends] if isinstance(ends, (list, tuple)) else [int(ends)]
    return []


def tokenizer_of(model_config: Any) -> Dict[str, Any]:
    """The model's tokenizer in the words of tokenizer.json. Where it is empty (none, or too large a one), all tokens are drawn alike."""
    folder = str(getattr(model_config, "tokenizer", None) or model_config.model)
    return vocabularies.of_checkpoint(folder, str(getattr(model_config, "tokenizer_mode", "auto")))


def _token_biases(tokenizer: Dict[str, Any]) -> Iterable[Any]:
    """(token, bias) of every token of the tokenizer."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict):
        for text, token in vocabulary.items():
            yield token, CLOSING.get(text) or _rarity(text)
        added = tokenizer.get("added_tokens") or []
        forged = any(token["content"] == script.START for token in added)  # it has markers that only scripts are to say
        for token in added:
            yield token["id"], SPECIAL if forged or token.get("special") else 0.0


def _rarity(text: str) -> float:
    """The bias of a token that is one character of byte-level BPE's alphabet, where U+0100 to U+0143 stand for the unprintable bytes, or one of
    sentencepiece's bytes."""
    if re.fullmatch("<0x[0-9A-F]{2}>", text):
        return HIGH
    return 0.0 if len(text) != 1 or "!" <= text <= "~" else _rarity_of(text)


def _rarity_of(character: str) -> float:
    if "\u0100" <= character <= "\u0143":
        byte = ord(character) - 0x100
        return 0.0 if byte == 0x20 else CONTROL if byte <= 0x21 else HIGH
    return HIGH if "\u00a1" <= character <= "\u00ff" else 0.0
