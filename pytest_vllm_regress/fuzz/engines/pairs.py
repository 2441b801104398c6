"""Pairs of configurations that must agree, and what of a question each pair can be asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ...util.codec import Document, load, replace
from ...util.paths import DATA
from .engine_question import Request, Turns

SERVE, MODEL = "serve", "model"


class Configuration(Document, frozen=True):
    """One side of a pair.

    Attributes:
        front: ``offline``, ``async`` or ``serve``; ``model`` is what the script and the
            documentation say, without an engine.
        together: whether the requests of a turn are sent together, else one after the other.
        stream: kind of streamed results (``delta``, ``cumulative``); ``sse`` for a server's events;
            empty for whole answers.
        spec: fields of EngineSpec.
        environment: another environment than the campaign's.
    """

    front: str = "offline"
    together: bool = True
    stream: str = ""
    spec: Mapping[str, Any] = {}
    environment: str = ""


class Pair(Document, frozen=True):
    """Two configurations that must agree.

    Attributes:
        left: the simpler one.
        keeps: what a request may have of ``adapter``, ``priority``, ``salt`` and ``abort``; the
            rest is taken away from it.
        drops: options that legitimately differ here.
        random: whether the answers may depend on random numbers, which other releases draw in
            another way.
    """

    name: str
    left: Configuration = Configuration()
    right: Configuration = Configuration()
    keeps: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()
    random: bool = True

    @property
    def sides(self) -> tuple[Configuration, Configuration]:
        return self.left, self.right

    def fitted(self, question: Turns, lacking: Collection[str] = ()) -> Turns | None:
        """Return what the pair can be asked of a question, None if nothing is left.

        ``lacking``: options that this vLLM does not have.
        """
        turns = [
            tuple(
                self._fitted(request).without(*lacking) for request in filter(self._can_ask, turn)
            )
            for turn in question.turns
        ]
        return Turns(tuple(filter(None, turns))) if any(turns) else None

    def _can_ask(self, request: Request) -> bool:
        if not self.random and not request.said and request.options.get("temperature") != 0:
            return False
        return not (
            SERVE in (self.left.front, self.right.front)
            and request.options.get("detokenize") is False
        )

    def _fitted(self, request: Request) -> Request:
        usual = {name: value for keep, (name, value) in _USUAL.items() if keep not in self.keeps}
        return replace(request, **usual).without(*self.drops)


_USUAL: Mapping[str, tuple[str, Any]] = {
    "adapter": ("adapter", None),
    "priority": ("priority", None),
    "salt": ("salt", ""),
    "abort": ("abort_after", None),
}
"""What requests have without what a pair may keep."""


class _Pairs(Document, frozen=True):
    pair: tuple[Pair, ...]


def pairs(against: str = "") -> tuple[Pair, ...]:
    """Return all pairs (``data/fuzz/pairs.toml``).

    ``against``: the environment of another release, for the pair ``release``.
    """
    path = DATA / "fuzz" / "pairs.toml"
    *together, release = load(_Pairs, path, 1 << 20, what="the pairs").pair
    if not against:
        return tuple(together)
    other = replace(release.right, environment=against)
    return (*together, replace(release, right=other))


def pairs_named(names: Sequence[str], against: str = "") -> tuple[Pair, ...]:
    """Return the pairs of these names, all without names.

    Raises ``UsageError`` for an unknown one.
    """
    known = {pair.name: pair for pair in pairs(against)}
    if "release" in names and not against:
        raise UsageError("--pair release: name the other environment with a second --env")
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"--pair {unknown[0]!r}: allowed are {', '.join(known)}")
    return tuple(pair for name, pair in known.items() if not names or name in names)
