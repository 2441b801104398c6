"""lm-format-enforcer: a character-level parser, and an enforcer that finds the tokens whose characters it takes."""

import inspect
import pickle
from typing import Any, Collection, Dict, List, Optional, cast

from lmformatenforcer import JsonSchemaParser, TokenEnforcer, TokenEnforcerTokenizerData

from . import Backend, Grammar, Vocabulary, Walk


class Decoder:
    """Token ids to text, less the mark of an unfinished character, as lm-format-enforcer's integrations do it. Can be pickled."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def __call__(self, tokens: List[int]) -> str:
        return self._vocabulary.decode(tokens).rstrip("\ufffd")


class _Walk(Walk):
    def __init__(self, enforcer: Any) -> None:
        self._enforcer = enforcer
        self._taken: List[int] = []

    def allowed(self) -> Collection[int]:
        found = self._enforcer.get_allowed_tokens(self._taken)
        return cast("List[int]", getattr(found, "allowed_tokens", found))

    def advance(self, token: int) -> None:
        self._taken = [*self._taken, token]

    def carried(self) -> Walk:
        twin = _Walk(pickle.loads(pickle.dumps(self._enforcer)))
        twin._taken = self._taken
        return twin


class _Grammar(Grammar):
    def __init__(self, enforcer: Any, parser: Any) -> None:
        self.enforcer, self.parser = enforcer, parser

    def walk(self) -> Walk:
        return _Walk(self.enforcer)


class _Backend(Backend):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        zero = vocabulary.spell("0", whole=False)
        regular = []
        for number, spelt in enumerate(vocabulary.tokens):
            if spelt is not None:
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
        for at, letter in enumerate(text):
            if letter not in parser.get_allowed_characters():
                return at
            parser = parser.add_character(letter)
        return None if parser.can_end() else len(text)


def create(vocabulary: Vocabulary) -> Backend:
    return _Backend(vocabulary)
