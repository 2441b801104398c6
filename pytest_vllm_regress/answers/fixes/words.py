"""The words of messages, code and titles: identifiers in lower case, and their parts."""

from __future__ import annotations

import re

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,39}")
_COMPOUND = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-._][A-Za-z0-9]+){1,6}")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBERED = re.compile(r"[A-Z][a-z]+\d+(?=[A-Z])")
"""The model in the name of a class, such as Gemma3Config."""
_COMMON = """
the and for with not from this that are was will has have can but you your its into all any use
using used when then than which should must may only also please see error errors exception none
true false self cls def class return raise import elif else try except finally while yield pass
assert lambda global async await str int float bool list dict set tuple len isinstance getattr
super init args kwargs type types typing optional union value values name vllm file line call
other because there does did how why what where here get new one more make cannot bug fix fixed
"""
COMMON = frozenset(_COMMON.split())


def identifiers(text: str) -> set[str]:
    """Return the identifiers and words in a text, lower case, none of them common."""
    return {word.lower().strip("_") for word in _IDENTIFIER.findall(text)} - COMMON


def is_common(word: str) -> bool:
    return len(word) < 3 or word in COMMON


def words(text: str) -> set[str]:
    """Return the identifiers in a text and the parts of those that have several."""
    found: set[str] = set()
    for word in _IDENTIFIER.findall(text):
        found.add(word.lower().strip("_"))
        if "_" in word or not (word.islower() or word.isupper()):
            found.update(part.lower() for part in _PART.findall(word))
            found.update(part.lower() for part in _NUMBERED.findall(word))
    return {word for word in found if not is_common(word)} | _models(text)


def _models(text: str) -> set[str]:
    """Return one spelling of names such as Qwen2.5-VL and qwen2_5_vl, and of their beginnings."""
    found: set[str] = set()
    for compound in _COMPOUND.findall(text.replace(".py", " ")):
        parts = re.split(r"[-._]", compound.lower())
        joined = ("".join(parts[:count]) for count in range(2, len(parts) + 1))
        found.update(word for word in joined if any(map(str.isdigit, word)))
    return found
