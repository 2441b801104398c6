"""llguidance: derivatives and an Earley parser, with flexible whitespace as in vLLM's default."""

import json
from typing import Any, Collection, Dict, List, Optional, cast

import llguidance

from . import Backend, Grammar, Vocabulary, Walk, first_refused_index, unpack_bitmask


class _Tokenizer:
    """The tokenizer interface that llguidance requires. With ``whole`` false, every text is encoded in single bytes."""

    def __init__(self, vocabulary: Vocabulary, whole: bool) -> None:
        self._vocabulary, self._whole = vocabulary, whole
        self.eos_token_id = vocabulary.eos
        self.bos_token_id = None
        usable = [token if token and (whole or len(token) == 1) else None for token in vocabulary.tokens]
        self.special_token_ids = [number for number, token in enumerate(usable) if token is None]
        self.tokens = [token or "<|{}|>".format(number).encode() for number, token in enumerate(usable)]

    def __call__(self, text: Any) -> List[int]:
        decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._vocabulary.encode(decoded, self._whole)


class _Walk(Walk):
    def __init__(self, vocabulary: Vocabulary, matcher: Any) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher

    def allowed(self) -> Collection[int]:
        mask = self._matcher.compute_bitmask()
        _raise_error(self._matcher)
        words = [int.from_bytes(mask[at : at + 4], "little") for at in range(0, len(mask), 4)]
        return unpack_bitmask(words, self._vocabulary.size)

    def advance(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            _raise_error(self._matcher)
            raise AssertionError("the matcher refused token {}, which its mask allows".format(token))

    def transferred(self) -> Walk:
        return _Walk(self._vocabulary, self._matcher.deep_copy())


class _Grammar(Grammar):
    def __init__(self, backend: "_Backend", text: str) -> None:
        self._backend, self._text = backend, text
        self._matcher()  # raises for an unsupported schema now, not at the first token

    def _matcher(self, whole: bool = True) -> Any:
        matcher = llguidance.LLMatcher(self._backend.tokenizers[whole], self._text, log_level=0)
        _raise_error(matcher)
        return matcher

    def walk(self) -> Walk:
        return _Walk(self._backend.vocabulary, self._matcher())

    def in_bytes(self) -> Walk:
        """Return a walk in a vocabulary of single bytes.

        In the real vocabulary, llguidance allows forced text only in the tokenizer's own encoding.
        """
        return _Walk(self._backend.vocabulary, self._matcher(whole=False))


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.tokenizers = [_tokenizer(vocabulary, whole) for whole in (False, True)]

    def compile(self, schema: Dict[str, Any]) -> Grammar:
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_flexible": True})
        return _Grammar(self, text)

    def refused_at(self, grammar: Grammar, text: str) -> Optional[int]:
        return first_refused_index(cast(_Grammar, grammar).in_bytes(), self.vocabulary, text, whole=False)


def _tokenizer(vocabulary: Vocabulary, whole: bool) -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokenizer(vocabulary, whole)), n_vocab=vocabulary.size)


def _raise_error(matcher: Any) -> None:
    error = matcher.get_error()
    if error:
        raise ValueError(error)


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
