"""outlines: outlines-core turns a schema into one regular expression, and the expression into an index over the vocabulary."""

import json
import pickle
from typing import Any, Collection, Dict, List

import outlines_core
from outlines_core import json_schema

from . import Backend, Grammar, Vocabulary, Walk

# Without it, advance() returns the next tokens, which costs time. outlines-core before 0.2.9 always returns them.
_NO_TOKENS = (
    {"return_tokens": False} if "return_tokens" in (outlines_core.Guide.advance.__text_signature__ or "") else {}
)


class _Walk(Walk):
    def __init__(self, eos: int, guide: Any) -> None:
        self._eos, self._guide = eos, guide
        self._ended = False

    def allowed(self) -> Collection[int]:
        return [] if self._ended else list(self._guide.get_tokens())

    def advance(self, token: int) -> None:
        if token == self._eos:
            self._ended = True
        else:
            self._guide.advance(token, **_NO_TOKENS)

    def transferred(self) -> Walk:
        return _Walk(self._eos, pickle.loads(pickle.dumps(self._guide)))


class _Grammar(Grammar):
    def __init__(self, eos: int, index: Any) -> None:
        self._eos, self._index = eos, index

    def walk(self) -> Walk:
        return _Walk(self._eos, outlines_core.Guide(self._index))


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        ids: Dict[bytes, List[int]] = {
            token: [number] for number, token in enumerate(vocabulary.tokens) if token is not None
        }
        self._outlines = outlines_core.Vocabulary(vocabulary.eos, ids)

    def compile(self, schema: Dict[str, Any]) -> Grammar:
        pattern = json_schema.build_regex_from_schema(json.dumps(schema))
        return _Grammar(self.vocabulary.eos, outlines_core.Index(pattern, self._outlines))


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
