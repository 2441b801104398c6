"""The grammar role: check one schema per request with valid texts, invalid texts and random walks."""

import random
from functools import lru_cache
from typing import Any, Optional

from .. import grammars

CLOSERS = frozenset(b'"}],')
_CLOSING_PROBABILITY = 0.5  # how often a walk prefers a token that closes something
_DEAD, _CUT, _FINISHED = "dead end", "cut", "finished"


def warm(tokenizer: str, backends: list[str]) -> list[str]:
    """Load the backends in this process, for the children it will fork.

    Returns the installed ones.
    """
    installed = [name for name in backends if grammars.installed(name)]
    for name in installed:
        _backend(name, tokenizer)
    return installed


def check_schema(backend: str, tokenizer: str, question: dict[str, Any]) -> dict[str, Any]:
    """Check what a backend makes of a ``question``: its ``schema``, and its ``valid`` and ``invalid``
    texts.

    The reply has these keys:

    - ``valid`` and ``invalid``: for each text, the index at which it is refused character by
      character, and the same token by
      token; None if it is accepted.
    - ``walks``: as many seeded random walks under the mask as the question wants, each at most
      ``max_tokens`` long.
    - ``carried``: where a grammar's state, transferred as the backend offers, behaved differently,
      or why it cannot be transferred.
    - ``error``: the exception the backend raised, and ``during`` what; earlier results are kept.
    """
    reply: dict[str, Any] = {
        "valid": [],
        "invalid": [],
        "walks": [],
        "carried": None,
        "error": None,
    }
    loaded = _backend(backend, tokenizer)
    during = "compile"
    try:
        grammar = loaded.compile(question["schema"])
        for kind in ("valid", "invalid"):
            for text in question[kind]:
                during = f"{kind} text {text}"
                reply[kind].append(
                    [
                        loaded.refused_at(grammar, text),
                        grammars.first_refused_index(
                            grammar.walk(), loaded.vocabulary, text, whole=True
                        ),
                    ]
                )
        for number in range(question["walks"]):
            during = f"walk {number}"
            reply["walks"].append(
                _walk(
                    grammar,
                    loaded.vocabulary,
                    random.Random(question["seed"] * 1000 + number),
                    question["max_tokens"],
                )
            )
        if reply["walks"]:
            during = "sending the state"
            reply["carried"] = _transfer(grammar, loaded.vocabulary, reply["walks"][0]["tokens"])
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # Rust panics are not subclasses of Exception
        reply["error"] = {
            "type": type(error).__name__,
            "message": str(error)[:2000],
            "during": during,
        }
    return reply


@lru_cache(maxsize=None)
def _backend(name: str, tokenizer: str) -> grammars.Backend:
    return grammars.load(name, grammars.Vocabulary(tokenizer))


def _walk(
    grammar: grammars.Grammar,
    vocabulary: grammars.Vocabulary,
    rng: random.Random,
    max_tokens: int,
) -> dict[str, Any]:
    tokens: list[int] = []
    walk, end = grammar.walk(), _CUT
    while len(tokens) < max_tokens:
        allowed = sorted(walk.allowed())
        if not allowed:
            end = _DEAD
            break
        token = _choose(allowed, vocabulary, rng)
        if token == vocabulary.eos:
            end = _FINISHED
            break
        tokens.append(token)
        walk.advance(token)
    return {"text": vocabulary.decode(tokens), "end": end, "tokens": tokens}


def _choose(allowed: list[int], vocabulary: grammars.Vocabulary, rng: random.Random) -> int:
    """Choose an allowed token; often one that closes something, so that walks end."""
    if rng.random() < _CLOSING_PROBABILITY:
        if vocabulary.eos in allowed:
            return vocabulary.eos
        closing = [token for token in allowed if (vocabulary.tokens[token] or b"x")[0] in CLOSERS]
        if closing:
            return rng.choice(closing)
    return rng.choice(allowed)


def _transfer(
    grammar: grammars.Grammar, vocabulary: grammars.Vocabulary, tokens: list[int]
) -> Optional[dict[str, Any]]:
    """Transfer the state in the middle of a walk and compare the rest of the walk on both sides."""
    half = len(tokens) // 2
    original = grammar.walk()
    for token in tokens[:half]:
        original.allowed()
        original.advance(token)
    try:
        copy = original.transferred()
    except NotImplementedError:
        return {"unsupported": "the backend offers no way to send its state"}
    for step in range(half, len(tokens) + 1):
        before, after = set(original.allowed()), set(copy.allowed())
        if before != after:
            lost, gained = (
                sorted(vocabulary.decode([token]) for token in difference)[:5]
                for difference in (before - after, after - before)
            )
            return {"step": step, "lost": lost, "gained": gained}
        for walk in (original, copy):
            if step < len(tokens):
                walk.advance(tokens[step])
    return None
