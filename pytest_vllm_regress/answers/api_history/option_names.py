"""Which option of ``vllm serve`` a word of a command means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from itertools import chain

from .definitions import options_in
from .store import History

MIN_SIMILARITY = 0.8
MAX_NAME = 100
"""Characters of a name that is compared with known ones, which takes time with the square of its
length."""
_NAME = re.compile(r"--[a-z0-9][a-z0-9-]*")


class OptionNames:
    """The options of all known releases.

    vLLM leaves argparse's ``allow_abbrev`` on: the beginning of an option's name means this option
    if no other begins so.
    """

    def __init__(self, options: Collection[str], short: Mapping[str, str]) -> None:
        self.options = options
        self._names = sorted({*options, *(f"--no-{name.removeprefix('--')}" for name in options)})
        self._known = {name: name for name in self._names} | dict(short)

    @classmethod
    def of(cls, history: History) -> OptionNames:
        """Return the options in ``history``, with other names that they have."""
        options, short = {"--help"}, {"-h": "--help"}
        for name, timeline in history.table("options").items():
            if not _NAME.fullmatch(name):  # the template of one
                continue
            options.add(name)
            for alias in chain.from_iterable(option.aliases for option in options_in(timeline)):
                if alias.startswith("--"):
                    options.add(alias)
                else:
                    short[alias] = name
        return cls(options, short)

    def exact(self, word: str) -> str | None:
        """Return the option, or its negative form ``--no-...``, that ``word`` spells out; None if
        there is none."""
        return self._known.get(_dashed(word))

    def find(self, word: str) -> str | None:
        """Like ``exact``, but ``word`` may be the beginning of a name; None if several begin so."""
        longer = self._longer(word)
        return self.exact(word) or (longer[0] if len(longer) == 1 else None)

    def near(self, word: str) -> tuple[str, ...]:
        """Return the options that begin with ``word``, or else the one that resembles it most, if
        any does."""
        return self._longer(word) or tuple(closest(_dashed(word), self._names))

    def is_misspelt(self, word: str) -> bool:
        """Return whether ``word`` is no option and not the beginning of one, but resembles one."""
        return not self._longer(word) and bool(closest(_dashed(word), self._names))

    def _longer(self, word: str) -> tuple[str, ...]:
        word = _dashed(word)
        if not word.startswith("--") or len(word) < 4:
            return ()
        return tuple(name for name in self._names if name.startswith(word))


def closest(name: str, known: Collection[str]) -> list[str]:
    """Return the known name that resembles ``name`` most, in a list that is empty if none does."""
    return (
        difflib.get_close_matches(name, known, n=1, cutoff=MIN_SIMILARITY)
        if len(name) <= MAX_NAME
        else []
    )


def _dashed(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word
