"""Values of shell variables after conditions, and the evaluation of these conditions."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .findings import DEFAULT_OF_VARIABLE, ServerCommand, Word
from .shell_words import ALL_ARGUMENTS, REFERENCE, Known, split, value_of

MAX_COMPARED = 8_000
"""Most characters of a value that is compared between two branches."""
MAX_NAMED = 1_000
"""Most words, or characters, of a value to which the options of a likely branch are added."""
MAX_TEST = 500
"""Most characters of a word in a test."""
MAX_PATTERNS = 100
"""Most patterns of one branch that are evaluated."""
MORE = "$MORE_ARGS"
"""Placeholder for options that a condition may add."""
_SOMETIMES = f"${{{MORE[1:]}:+"
"""How a placeholder begins for one whose name is known."""
_LENGTH = re.compile(r"\$\{#(\w+)\[[@*]\]\}")
_COMPARISONS = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}

Value = Word | list[Word] | None
Truth = bool | None
"""The result of a test; None if it depends on a variable whose value is not known for sure."""


def truth_of(
    test: Sequence[Word], known: Mapping[str, Value], *, by_default: bool = False
) -> Truth:
    """Evaluate the words of a test, given without its brackets. ``by_default``: as if nobody had set a
    variable of the environment."""
    words = [_settled(word, known) for word in test]
    if by_default:
        words = [REFERENCE.sub("", DEFAULT_OF_VARIABLE.sub(r"\1", word)) for word in words]
    match words:
        case ["!", *_]:
            return inverted(truth_of(test[1:], known, by_default=by_default))
        case ["true" | ":"]:
            return True
        case ["false"]:
            return False
        case ["-n", text] | [text] if "$" not in text:
            return bool(text)
        case ["-z", text] if "$" not in text:
            return not text
        case [left, sign, right] if "$" not in left + right:
            return _compared(left, sign, right)
    return None


def is_in(subject: Word, patterns: Sequence[Word], known: Mapping[str, Value]) -> Truth:
    """Return whether the subject of a ``case`` matches one of the patterns."""
    if "*" in patterns:
        return True
    tests = ([subject, Word("=="), pattern] for pattern in patterns)
    truths = [truth_of(test, known) for test in tests if len(patterns) <= MAX_PATTERNS]
    return either_holds(*truths) if truths else None


def inverted(truth: Truth) -> Truth:
    return None if truth is None else not truth


def either_holds(*truths: Truth) -> Truth:
    return True if True in truths else None if None in truths else False


def both_hold(*truths: Truth) -> Truth:
    return inverted(either_holds(*map(inverted, truths)))


def _settled(word: Word, known: Mapping[str, Value]) -> str:
    """Replace the variables in a word by their values, unless the result is too long."""
    text = REFERENCE.sub(lambda match: value_of(match, known)[:MAX_TEST], word[:MAX_TEST])
    text = _LENGTH.sub(lambda match: _length(match, known), text)
    return text if len(text) < MAX_TEST else "$VALUE"


def _length(match: re.Match[str], known: Mapping[str, Value]) -> str:
    items = known.get(match[1])
    is_known = isinstance(items, list) and not any(item.startswith("$") for item in items)
    return str(len(items)) if is_known and isinstance(items, list) else "$VALUE"


def _compared(left: str, sign: str, right: str) -> Truth:
    if sign in ("=", "=="):
        return _matches(left, right)
    if sign == "!=":
        return inverted(_matches(left, right))
    if sign == "-ieq":
        return left.lower() == right.lower()
    if sign in _COMPARISONS and left.isdecimal() and right.isdecimal():
        return bool(_COMPARISONS[sign](int(left), int(right)))
    return None


def _matches(text: str, pattern: str) -> Truth:
    """Return whether a text matches a pattern; None if the pattern has more than ``*`` at its ends."""
    part = pattern.strip("*")
    if re.search(r"[*?\[]", part):
        return None
    starts, ends = pattern.startswith("*"), pattern.endswith("*")
    if starts and ends:
        return part in text
    if starts:
        return text.endswith(part)
    return text.startswith(part) if ends else text == part


@dataclass
class Branches:
    """An ``if``, a loop or a ``case``, whose branches are read one after the other.

    ``likely``: the variables after the branch that is taken by default. ``is_likely``: whether that is
    the branch that is read now.

    ``before``: the variables before it. ``ends``: those after each branch, and whether its test
    holds. ``truth``: of the branch that is read now. ``subject``: of a ``case``. ``patterns``: as
    far as they were read, before the body of its branch. ``is_loop``: what it starts is beside, not
    instead of, what is around it.
    """

    before: Known
    ends: list[tuple[Known, Truth]] = field(default_factory=list)
    likely: Known | None = None
    servers: list[list[ServerCommand]] = field(default_factory=lambda: [[]])
    truth: Truth = None
    is_likely: Truth = None
    subject: Word | None = None
    patterns: list[Word] | None = None
    has_else: bool = False
    is_loop: bool = False

    def next(self, known: Known) -> Known:
        """Go on to the next branch, after which the variables are ``known``; return those before
        it."""
        self._end(known)
        self.servers.append([])
        return dict(self.before)

    def after(self, known: Known) -> Known:
        """Return the variables after the last branch, as far as they are known."""
        self._end(known)
        ends = self.ends
        if not self.has_else:
            ends.append((self.before, True))
        possible: list[Known] = []
        for end, truth in ends:
            if truth is not False:
                possible.append(end)
            if truth:
                break
        merged = _merged(possible)
        if self.likely is not None:
            merged = {name: named(value, self.likely.get(name)) for name, value in merged.items()}
        return merged

    def _end(self, known: Known) -> None:
        self.ends.append((known, self.truth))
        if self.is_likely and self.truth is None and self.likely is None:
            self.likely = known
        self.truth = self.is_likely = None


def _merged(branches: Sequence[Known]) -> Known:
    """Return the variables after any one of several branches, as far as they are known."""
    names = dict.fromkeys(name for known in branches for name in known)
    merged: Known = {}
    for name in names:
        value = branches[0].get(name)
        for known in branches[1:]:
            value = either(value, known.get(name))
        merged[name] = value
    return merged


def either(before: Value, after: Value) -> Value:
    """Return what is known of a variable that may have one value or the other: what both have, and
    that there may be more; None if nothing is."""
    if before == after or before is None or after is None:
        return before if before == after else None
    if isinstance(before, list) and isinstance(after, list):
        return common(before, after)
    if isinstance(before, Word) and isinstance(after, Word):
        shorter, longer = sorted((before, after), key=len)
        if not shorter or longer.startswith(f"{shorter} "):
            return shorter if shorter.endswith(MORE) else Word(f"{shorter} {MORE}", after.line)
        if max(len(before), len(after)) > MAX_COMPARED:
            return None
        if len(split(before)) > 1 and len(split(after)) > 1:
            words = common(split(before, before.line), split(after, after.line))
            return Word(" ".join(map(_quoted, words)), after.line)
    return None


def named(merged: Value, likely: Value) -> Value:
    """Return what is known of a variable, with the names of the options that it has by default."""
    if not isinstance(likely, (Word, list)) or len(merged or "") > MAX_NAMED:
        return merged
    words = split(likely, likely.line) if isinstance(likely, Word) else likely
    if isinstance(merged, list):
        return [*merged, *sometimes(words, merged)]
    if isinstance(merged, Word) and merged.endswith(MORE):
        more = sometimes(words, split(merged))
        return Word(" ".join([merged, *more]), merged.line) if more else merged
    return merged


def sometimes(words: Iterable[Word], always: Sequence[Word] = ()) -> list[Word]:
    """Return a placeholder for each option among words that is not always there."""
    given = {word.partition("=")[0] for word in always}
    options = {
        word
        if word.startswith(_SOMETIMES)
        else f"{_SOMETIMES}{word.partition('=')[0]}}}": word.line
        for word in words
        if word.startswith(("--", _SOMETIMES)) and word.partition("=")[0] not in given
    }
    return [Word(option, line) for option, line in options.items() if option not in given]


def _quoted(word: Word) -> str:
    return shlex.quote(word) if re.search(r"[\s\"'\\]", word) else word


def common(some: Sequence[Word], others: Sequence[Word]) -> list[Word]:
    """Return the options that two lists of words have with the same values, and a variable for the
    other ones."""
    shorter, longer = sorted((list(some), list(others)), key=len)
    if longer[: len(shorter)] == shorter and shorter and longer[len(shorter) :] != [MORE]:
        shorter = shorter[:-1] if shorter[-1] == MORE else shorter
        return [*shorter, Word(MORE, shorter[-1].line if shorter else 1)]  # something was added
    listed, wanted = list(groups_of(some)), set(groups_of(others))
    model = {group[1:]: group for group in (*listed, *wanted) if group[0] == "--model"}
    listed = [model.get(group, group) for group in listed]
    wanted = {model.get(group, group) for group in wanted}
    same = [word for group in listed if group in wanted for word in group]
    line = some[0].line if some else 1
    is_open = set(listed) != wanted and MORE not in same
    return [*same, *([Word(MORE, line)] if is_open else [])]


def groups_of(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """Yield each option with its values, first what is before all options, word by word."""
    group: list[Word] = []
    for word in words:
        alone = word in (MORE, *ALL_ARGUMENTS) or word.startswith(("-", _SOMETIMES))
        if alone or not (group and group[0].startswith("-")):
            if group:
                yield tuple(group)
            group = []
        group.append(word)
    if group:
        yield tuple(group)
