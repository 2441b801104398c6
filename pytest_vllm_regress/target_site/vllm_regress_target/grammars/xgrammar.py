"""xgrammar: a pushdown automaton over bytes; any whitespace between JSON's parts, as vLLM asks for by default."""

import json
from typing import Any, Collection, Dict, cast

import xgrammar

from . import Backend, Grammar, Vocabulary, Walk, bits


class _Walk(Walk):
    def __init__(self, grammar: "_Grammar", matcher: Any) -> None:
        self._grammar, self._matcher = grammar, matcher
        self._taken: "list[int]" = []

    def allowed(self) -> Collection[int]:
        if self._matcher.is_terminated():
            return []
        mask = xgrammar.allocate_token_bitmask(1, self._grammar.backend.vocabulary.size)
        self._matcher.fill_next_token_bitmask(mask)
        return bits(mask[0].tolist(), self._grammar.backend.vocabulary.size)

    def advance(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise AssertionError("the matcher refused token {}, which its mask allows".format(token))
        self._taken.append(token)

    def carried(self) -> Walk:
        if not hasattr(xgrammar.CompiledGrammar, "serialize_json"):
            raise NotImplementedError
        backend = self._grammar.backend
        sent = xgrammar.CompiledGrammar.deserialize_json(self._grammar.compiled.serialize_json(), backend.info)
        twin = _Walk(self._grammar, xgrammar.GrammarMatcher(sent))
        for token in self._taken:
            twin.advance(token)
        return twin


class _Grammar(Grammar):
    def __init__(self, backend: "_Backend", compiled: Any) -> None:
        self.backend, self.compiled = backend, compiled

    def walk(self) -> Walk:
        return _Walk(self, xgrammar.GrammarMatcher(self.compiled))


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        spelt = [token or b"" for token in vocabulary.tokens]
        self.info = xgrammar.TokenizerInfo(
            cast("list[Any]", spelt),
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=[vocabulary.eos],
        )
        self._compiler = xgrammar.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)

    def compile(self, schema: Dict[str, Any]) -> Grammar:
        return _Grammar(self, self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True))


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
