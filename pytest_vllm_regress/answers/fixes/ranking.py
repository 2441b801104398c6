"""Which changes speak of a failure: words in common, functions in the traceback, the very line."""

from __future__ import annotations

import datetime
import functools
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

from .evidence import Evidence, VllmCall
from .index import DIGEST, MIN_LINE, Fix, digest
from .words import words

MEAN_TITLE = 6
MEAN_LENGTH = 50
"""Number of words of a title, and of all that is known of a change."""
MANY_FILES = 6
"""Files from which a change counts as large: it touches much and is seldom the fix."""
TYPICAL_SCORE = 20.0
MAX_RANKED = 20
_ADDS = re.compile(r"(?i)\b(?:add|support|enable|implement|initial)")


@dataclass(frozen=True)
class Weights:
    """How much each sign counts; chosen on reports with a known fix."""

    k: float = 1.2
    b: float = 0.5
    about: float = 1.0
    settings: float = 0.5
    prose: float = 0.3
    code: float = 0.4
    name: float = 0.4
    title: float = 1.5
    function: float = 1.0
    file: float = 0.5
    line: float = 2.0
    depth: float = 0.8
    fix: float = 1.2
    large: float = 0.4
    difference: float = 0.6
    support: float = 1.2
    late: float = 0.85
    half_life: float = 90.0
    power: float = 0.8
    """Below 1: the words of one phrase, such as "illegal memory access", are no independent signs."""


@dataclass(frozen=True)
class RankedFix:
    """A change with its score and why it is listed: functions that it changed and that are in the
    traceback, words that it shares with the failure, and whether it removed a line shown there."""

    fix: Fix
    score: float
    functions: tuple[str, ...]
    words: tuple[str, ...]
    has_line: bool


@functools.cache
def _words_of(name: str) -> frozenset[str]:
    """Return the words of a part of a title, a function or a path: many changes share them."""
    return frozenset(words(name))


@dataclass
class Hits:
    """Which changes have words of a failure: words by position of the change, those in the title
    apart, and the number of words of each."""

    titled: dict[int, set[str]]
    having: dict[int, set[str]]
    lengths: dict[int, int]
    counts: Counter[str]


class Ranker:
    """Ranks the changes of an index for one failure after the other."""

    def __init__(self, fixes: Sequence[Fix], weights: Weights | None = None) -> None:
        self._fixes, self._weights = fixes, weights or Weights()

    def rank(self, evidence: Evidence, allowed: Set[int], since: str) -> list[RankedFix]:
        """Return the ``MAX_RANKED`` changes that speak most of the failure, the best first.

        ``allowed``: positions of the changes that the reported version lacks; ``since``: the day of
        that version; later changes count a little less.
        """
        query = self._query(evidence)
        told = words(f"{evidence.message} {evidence.about} {evidence.settings}")
        named = words(f"{evidence.message} {evidence.settings}")
        models = {word for word in named if any(map(str.isdigit, word))}
        hits = self.hits(query, allowed)
        scores: dict[int, float] = defaultdict(float)
        self._add_words(query, hits, scores)
        functions = self._add_places(evidence, scores)
        lines = self._add_lines(evidence, scores)
        start = datetime.date.fromisoformat(since)
        for at in scores:
            brings_support = not models.isdisjoint(hits.titled.get(at, ()))
            scores[at] *= self._factor(at, start, brings_support=brings_support)
        best = heapq.nlargest(
            MAX_RANKED,
            scores.keys() & allowed,
            key=lambda at: (scores[at], -self._fixes[at].number, -at),
        )

        def of(at: int) -> RankedFix:
            shared = told & (hits.titled.get(at, set()) | hits.having.get(at, set()))
            by_weight = sorted(shared, key=lambda w: (-query[w] * self._rarity(hits.counts[w]), w))
            changing = tuple(functions.get(at, ()))
            return RankedFix(self._fixes[at], scores[at], changing, tuple(by_weight), at in lines)

        return list(map(of, best))

    def hits(self, query: Collection[str], allowed: Collection[int]) -> Hits:
        """Return which of the allowed changes have words of the query."""
        wanted = frozenset(query)
        hits = Hits({}, {}, {}, Counter())
        for at in allowed:
            fix = self._fixes[at]
            titled = set().union(*map(_words_of, fix.title.split())) & wanted
            terms = fix.terms.split()
            having = wanted.intersection(terms)
            for path, names in fix.changed.items():
                having |= _words_of(path) & wanted
                for name in names:
                    having |= _words_of(name) & wanted
            having -= titled
            if titled or having:
                hits.titled[at], hits.having[at] = titled, set(having)
                hits.lengths[at] = len(terms) + 2 * len(fix.changed) + MEAN_TITLE
                hits.counts.update(titled)
                hits.counts.update(having)
        return hits

    def _add_words(self, query: dict[str, float], hits: Hits, scores: dict[int, float]) -> None:
        w = self._weights
        values = {
            word: weight * self._rarity(hits.counts[word]) * (w.k + 1)
            for word, weight in query.items()
        }
        for at, length in hits.lengths.items():
            norm = w.k * (1 - w.b + w.b * length / MEAN_LENGTH)
            score = sum(values[word] for word in hits.titled[at]) * w.title / (w.title + norm)
            score += sum(values[word] for word in hits.having[at]) / (1 + norm)
            scores[at] += TYPICAL_SCORE * (score / TYPICAL_SCORE) ** w.power

    def _add_places(self, evidence: Evidence, scores: dict[int, float]) -> dict[int, list[str]]:
        """Add what files and functions of the traceback say. Return the functions by change."""
        w = self._weights
        functions: dict[int, list[str]] = defaultdict(list)
        paths: set[str] = set()
        for place, weight in self._weighted(evidence.places):
            touching = self._touching.get(place.path, [])
            changing = [
                at for at in touching if place.function in self._fixes[at].changed[place.path]
            ]
            for at in touching if place.path not in paths else ():
                scores[at] += w.file * weight * self._rarity(len(touching))
            for at in changing:
                if place.function not in functions[at]:
                    functions[at].append(place.function)
                    scores[at] += w.function * weight * self._rarity(len(changing))
            paths.add(place.path)
        return functions

    @functools.cached_property
    def _touching(self) -> dict[str, list[int]]:
        """Positions of the changes of each file."""
        touching: dict[str, list[int]] = defaultdict(list)
        for position, fix in enumerate(self._fixes):
            for path in fix.changed:
                touching[path].append(position)
        return touching

    def _add_lines(self, evidence: Evidence, scores: dict[int, float]) -> set[int]:
        """Add what the lines of code in the traceback say. Return the changes that removed one."""
        removing = set()
        for place, weight in self._weighted(evidence.places):
            if len(place.code) < MIN_LINE:
                continue
            wanted = digest(place.code)
            for at in self._touching.get(place.path, ()):
                removed = self._fixes[at].removed
                if wanted in (removed[i : i + DIGEST] for i in range(0, len(removed), DIGEST)):
                    scores[at] += self._weights.line * weight
                    removing.add(at)
        return removing

    def _factor(self, at: int, start: datetime.date, *, brings_support: bool) -> float:
        """Return what the kind and the day of a change say about it.

        ``brings_support``: its title names what has failed. If it adds that, the version does not
        support it yet.
        """
        w, fix = self._weights, self._fixes[at]
        days = max(0, (datetime.date.fromisoformat(fix.date) - start).days)
        late = 1 - w.late + w.late * math.exp2(-days / w.half_life)
        if not fix.number:
            kind = w.difference
        elif fix.is_titled_fix:
            kind = w.fix
        elif brings_support and _ADDS.search(fix.title):
            return late * w.support
        else:
            kind = 1.0
        return late * kind * (w.large if len(fix.changed) > MANY_FILES else 1.0)

    def _rarity(self, count: int) -> float:
        return math.log(1 + (len(self._fixes) - count + 0.5) / (count + 0.5))

    def _weighted(self, places: Sequence[VllmCall]) -> list[tuple[VllmCall, float]]:
        """Return the calls, the innermost first, with a weight that falls with the depth."""
        calls: dict[tuple[str, str], tuple[VllmCall, float]] = {}
        for place in reversed(places):
            calls.setdefault(
                (place.path, place.function), (place, self._weights.depth ** len(calls))
            )
        return list(calls.values())

    def _query(self, evidence: Evidence) -> dict[str, float]:
        w = self._weights
        texts = [
            (evidence.message, 1.0),
            (evidence.about, w.about),
            (evidence.settings, w.settings),
            (evidence.prose, w.prose),
        ]
        for place, weight in self._weighted(evidence.places):
            texts.append((place.code, w.code * weight))
            texts.append((f"{place.path} {place.function}", w.name * weight))
        query: dict[str, float] = {}
        for text, weight in texts:
            for word in words(text):
                query[word] = max(query.get(word, 0.0), weight)
        return query
