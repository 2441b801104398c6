"""xgrammar: a pushdown automaton over bytes, with any whitespace in JSON as in vLLM's default."""

import json
from typing import Any, Collection, Dict, cast

import xgrammar

from . import Backend, Grammar, Vocabulary, Walk, unpack_bitmask


class _Walk(Walk):
    def __init__(self, grammar: "_Grammar", matcher: Any) -> None:
        self._grammar, self._matcher = grammar, matcher
        self._tokens: "list[int]" = []

    def allowed(self) -> Collection[int]:
        if self._matcher.is_terminated():
            return []
        mask = xgrammar.allocate_token_bitmask(1, self._grammar.backend.vocabulary.size)
        self._matcher.fill_next_token_bitmask(mask)
        return unpack_bitmask(mask[0].tolist(), self._grammar.backend.vocabulary.size)

    def advance(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise AssertionError("the matcher refused token {}, which its mask allows".format(token))
        self._tokens.append(token)

    def transferred(self) -> Walk:
        if not hasattr(xgrammar.CompiledGrammar, "serialize_json"):
            raise NotImplementedError
        backend = self._grammar.backend
        received = xgrammar.CompiledGrammar.deserialize_json(self._grammar.compiled.serialize_json(), backend.info)
        copy = _Walk(self._grammar, xgrammar.GrammarMatcher(received))
        for token in self._tokens:
            copy.advance(token)
        return copy


class _Grammar(Grammar):
    def __init__(self, backend: "_Backend", compiled: Any) -> None:
        self.backend, self.compiled = backend, compiled

    def walk(self) -> Walk:
        return _Walk(self, xgrammar.GrammarMatcher(self.compiled))


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        tokens = [token or b"" for token in vocabulary.tokens]
        self.info = xgrammar.TokenizerInfo(
            cast("list[Any]", tokens),
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=[vocabulary.eos],
        )
        self._compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)

    def compile(self, schema: Dict[str, Any]) -> Grammar:
        return _Grammar(self, self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True))


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
