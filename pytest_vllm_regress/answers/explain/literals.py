"""Literal texts that every match of a regular expression contains."""

from __future__ import annotations

import re

SHORTEST = 5
_TOKEN = re.compile(
    r"(?P<flags>\(\?[a-zA-Z-]+\))|(?P<escape>\\(?:[^\W\d_]|\d+))|\\(?P<quoted>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\()|(?P<close>\))|(?P<many>[*?]|\{\d*,?\d*\})\??\+?|(?P<plus>\+)\??|(?P<any>[.^$])|(?P<or>\|)|(?P<plain>.)",
    re.DOTALL,
)


def required_literals(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match contains at least one; empty if no text of ``SHORTEST``
    characters is certain."""
    alternatives: list[list[str]] = [[""]]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        runs = alternatives[-1]
        if kind == "flags":
            return ()
        if kind == "open":
            depth += 1
            runs.append("")
        elif kind == "close":
            depth -= 1
            runs.append("")
        elif depth:
            continue
        elif kind in ("plain", "quoted"):
            runs[-1] += token[kind]
        elif kind == "or":
            alternatives.append([""])
        else:
            if kind == "many":
                runs[-1] = runs[-1][:-1]
            runs.append("")
    longest = tuple(max(runs, key=len) for runs in alternatives)
    return longest if all(len(text) >= SHORTEST for text in longest) else ()
