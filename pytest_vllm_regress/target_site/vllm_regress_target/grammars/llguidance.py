"""llguidance: derivatives and an Earley parser; flexible whitespace, as vLLM asks for by default."""

import json
from typing import Any, Collection, Dict, List

import llguidance

from . import Backend, Grammar, Vocabulary, Walk, bits


class _Tokenizer:
    """What llguidance asks of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.eos
        self.bos_token_id = None
        self.special_token_ids = vocabulary.special
        self.tokens = [spelt or "<|{}|>".format(number).encode() for number, spelt in enumerate(vocabulary.tokens)]

    def __call__(self, text: Any) -> List[int]:
        spelt = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._vocabulary.spell(spelt, whole=True)


class _Walk(Walk):
    def __init__(self, vocabulary: Vocabulary, matcher: Any) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher

    def allowed(self) -> Collection[int]:
        mask = self._matcher.compute_bitmask()
        _raise_error(self._matcher)
        words = [int.from_bytes(mask[at : at + 4], "little") for at in range(0, len(mask), 4)]
        return bits(words, self._vocabulary.size)

    def advance(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            _raise_error(self._matcher)
            raise AssertionError("the matcher refused token {}, which its mask allows".format(token))

    def carried(self) -> Walk:
        return _Walk(self._vocabulary, self._matcher.deep_copy())


class _Grammar(Grammar):
    def __init__(self, backend: "_Backend", text: str) -> None:
        self._backend, self._text = backend, text
        self._matcher()  # an unsupported schema is refused here, not at the first token

    def _matcher(self) -> Any:
        matcher = llguidance.LLMatcher(self._backend.tokenizer, self._text, log_level=0)
        _raise_error(matcher)
        return matcher

    def walk(self) -> Walk:
        return _Walk(self._backend.vocabulary, self._matcher())


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        wrapper = llguidance.TokenizerWrapper(_Tokenizer(vocabulary))
        self.tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.size)

    def compile(self, schema: Dict[str, Any]) -> Grammar:
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_flexible": True})
        return _Grammar(self, text)


def _raise_error(matcher: Any) -> None:
    error = matcher.get_error()
    if error:
        raise ValueError(error)


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
