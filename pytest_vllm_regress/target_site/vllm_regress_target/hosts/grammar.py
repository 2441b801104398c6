"""A child that checks grammars: one schema a request, with texts that must be accepted, texts that must be refused, and random walks."""

import random
import time
from typing import Any, Collection, Dict, List, Optional, Tuple

from .. import grammars

CLOSERS = frozenset(b'"}],')
_ROOM = 0.5  # how often a walk prefers a token that ends something
_DEAD, _CUT, _FINISHED = "dead end", "cut", "finished"
_WORKING: Dict[Tuple[str, str], grammars.Backend] = {}


def warm(tokenizer: str, backends: List[str]) -> List[str]:
    """Set the backends up in this process, for the children it will fork; the result are those that are installed."""
    found = [name for name in backends if grammars.installed(name)]
    for name in found:
        _backend(name, tokenizer)
    return found


class GrammarHost:
    """Answers ``check``: see ``check_schema``."""

    def __init__(self) -> None:
        self.check = check_schema

    def warm(self, backend: str, tokenizer: str) -> None:
        """Set the backend up, where the agent could not hand it over."""
        _backend(backend, tokenizer)

    def stop(self) -> None:
        """Nothing is open."""


def check_schema(
    backend: str,
    tokenizer: str,
    schema: Dict[str, Any],
    valid: List[str],
    invalid: List[str],
    walks: int = 2,
    seed: int = 0,
    max_tokens: int = 60,
    timings: bool = False,
) -> Dict[str, Any]:
    """What a backend makes of a schema and of texts.

    ``valid`` and ``invalid`` come back as pairs: where the text is refused character by character, and token by token (None: it is
    accepted). ``walks``: seeded walks under the mask, each at most ``max_tokens`` long. ``carried``: where the state, sent as the
    backend offers, went on differently, or why it could not be sent. What the backend raises comes back in ``error`` with what it
    was raised ``during``; what had been found until then stays. ``timings`` adds seconds: compile, first mask, every later mask.
    """
    reply: Dict[str, Any] = {"valid": [], "invalid": [], "walks": [], "carried": None, "error": None}
    clock = _Clock() if timings else None
    working = _backend(backend, tokenizer)
    during = "compile"
    try:
        started = time.perf_counter()
        grammar = working.compile(schema)
        compiled = time.perf_counter() - started
        for kind, texts in (("valid", valid), ("invalid", invalid)):
            for text in texts:
                during = "{} text {}".format(kind, text)
                reply[kind].append(
                    [
                        working.refused_at(grammar, text),
                        grammars.follow(grammar.walk(), working.vocabulary, text, whole=True),
                    ]
                )
        for number in range(walks):
            during = "walk {}".format(number)
            reply["walks"].append(
                _walk(grammar, working.vocabulary, random.Random(seed * 1000 + number), max_tokens, clock)
            )
        if walks:
            during = "sending the state"
            reply["carried"] = _carry(grammar, working.vocabulary, reply["walks"][0]["tokens"])
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # Rust panics are no Exception
        reply["error"] = {"type": type(error).__name__, "message": str(error)[:2000], "during": during}
        return reply
    if clock is not None:
        reply["timings"] = {"compile": compiled, "first": clock.seconds[:1], "masks": clock.seconds[1:]}
    return reply


class _Clock:
    """Measures masks."""

    def __init__(self) -> None:
        self.seconds: List[float] = []

    def allowed(self, walk: grammars.Walk) -> Collection[int]:
        started = time.perf_counter()
        found = walk.allowed()
        self.seconds.append(time.perf_counter() - started)
        return found


def _backend(name: str, tokenizer: str) -> grammars.Backend:
    if (name, tokenizer) not in _WORKING:
        _WORKING[name, tokenizer] = grammars.load(name, grammars.Vocabulary(tokenizer))
    return _WORKING[name, tokenizer]


def _walk(
    grammar: grammars.Grammar, vocabulary: grammars.Vocabulary, rng: random.Random, most: int, clock: Optional[_Clock]
) -> Dict[str, Any]:
    tokens: List[int] = []
    walk, end = grammar.walk(), _CUT
    while len(tokens) < most:
        allowed = sorted(clock.allowed(walk) if clock else walk.allowed())
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


def _choose(allowed: List[int], vocabulary: grammars.Vocabulary, rng: random.Random) -> int:
    """Any allowed token; now and then one that ends something, so that walks end."""
    if rng.random() < _ROOM:
        if vocabulary.eos in allowed:
            return vocabulary.eos
        closing = [token for token in allowed if (vocabulary.tokens[token] or b"x")[0] in CLOSERS]
        if closing:
            return rng.choice(closing)
    return rng.choice(allowed)


def _carry(grammar: grammars.Grammar, vocabulary: grammars.Vocabulary, tokens: List[int]) -> Optional[Dict[str, Any]]:
    """Send the state halfway and follow the rest of the walk on both sides."""
    half = len(tokens) // 2
    here = grammar.walk()
    for token in tokens[:half]:
        here.allowed()
        here.advance(token)
    try:
        there = here.carried()
    except NotImplementedError:
        return {"unsupported": "the backend offers no way to send its state"}
    for step in range(half, len(tokens) + 1):
        ours, theirs = set(here.allowed()), set(there.allowed())
        if ours != theirs:
            lost, gained = (sorted(vocabulary.decode([t]) for t in part)[:5] for part in (ours - theirs, theirs - ours))
            return {"step": step, "lost": lost, "gained": gained}
        for walk in (here, there):
            if step < len(tokens):
                walk.advance(tokens[step])
    return None
