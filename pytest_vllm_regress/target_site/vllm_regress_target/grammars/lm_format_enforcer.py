"""lm-format-enforcer: a character-level parser, and an enforcer that finds the tokens whose characters the parser accepts."""

import inspect
import pickle
from typing import Any, Collection, Dict, List, Optional, cast

from lmformatenforcer import JsonSchemaParser, TokenEnforcer, TokenEnforcerTokenizerData

from . import Backend, Grammar, Vocabulary, Walk


class Decoder:
    """Picklable function from token ids to text. Like lm-format-enforcer's integrations, it drops an incomplete last character."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, tokens: List[int]) -> str:
        return self._vocabulary.decode(tokens).rstrip("\ufffd")


class _Walk(Walk):
    def __init__(self, enforcer: Any) -> None:
        self._enforcer = enforcer
        self._tokens: List[int] = []

    def allowed(self) -> Collection[int]:
        allowed = self._enforcer.get_allowed_tokens(self._tokens)
        return cast("List[int]", getattr(allowed, "allowed_tokens", allowed))

    def advance(self, token: int) -> None:
        self._tokens = [*self._tokens, token]

    def transferred(self) -> Walk:
        copy = _Walk(pickle.loads(pickle.dumps(self._enforcer)))
        copy._tokens = self._tokens
        return copy


class _Grammar(Grammar):
    def __init__(self, enforcer: Any, parser: Any) -> None:
        self.enforcer, self.parser = enforcer, parser

    def walk(self) -> Walk:
        return _Walk(self.enforcer)


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        zero = vocabulary.encode("0", whole=False)
        regular = []
        for number, token in enumerate(vocabulary.tokens):
            if token is not None:
                after_zero = vocabulary.decode([*zero, number])[1:]
                regular.append((number, after_zero, len(after_zero) > len(vocabulary.decode([number]))))
        known = inspect.signature(TokenEnforcerTokenizerData.__init__).parameters
        later = {
            name: value for name, value in (("use_bitmask", False), ("vocab_size", vocabulary.size)) if name in known
        }
        self._data = TokenEnforcerTokenizerData(regular, Decoder(vocabulary), vocabulary.eos, **later)

    def compile(self, schema: Dict[str, Any]) -> Grammar:
        parser = JsonSchemaParser(schema)
        return _Grammar(TokenEnforcer(self._data, parser), parser)

    def refused_at(self, grammar: Grammar, text: str) -> Optional[int]:
        parser = cast(_Grammar, grammar).parser
        for index, letter in enumerate(text):
            if letter not in parser.get_allowed_characters():
                return index
            parser = parser.add_character(letter)
        return None if parser.can_end() else len(text)


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
