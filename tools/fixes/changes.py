"""Changes of vLLM's Python sources, from the history of a clone."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_vllm_regress.answers.fixes.index import MIN_LINE, Fix, digest, is_fix
from pytest_vllm_regress.answers.fixes.words import identifiers, is_common, words

SINCE = "2024-09-01"
"""The last days before 0.6."""
MAX_TERMS = 36
MAX_REMOVED = 8
MAX_FUNCTIONS = 24
MAX_TESTS = 3
_BESIDE = ("csrc", "cmake", "CMakeLists.txt", "setup.py", "requirements", "requirements*.txt")
_HEAD = "\x01"
HEAD_FORMAT = f"{_HEAD}%H\x02%ad\x02%s"
"""Of git log, for ``parse``."""
_DEFINITION = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)")
_HUNK = re.compile(r"@@ -\S+ \+\S+ @@ ?(.*)")
_NUMBER = re.compile(r"\(#(\d+)\)\s*$")
_TEST = re.compile(r"\+\s*(?:async\s+)?def (test_\w+)")
_STRING = re.compile(r"\"([^\"]*)\"|'([^']*)'")


@dataclass
class Change:
    """A commit: the lines that it added and removed by path, the functions around them, the tests
    that it added, and the kernels, requirements and build files that it changed (``beside``)."""

    commit: str
    date: str
    title: str
    functions: dict[str, dict[str, None]] = field(default_factory=dict)
    added: dict[str, set[str]] = field(default_factory=dict)
    removed: dict[str, set[str]] = field(default_factory=dict)
    tests: list[str] = field(default_factory=list)
    beside: dict[str, dict[str, None]] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        match = _NUMBER.search(self.title)
        return int(match[1]) if match else None

    @property
    def counts(self) -> bool:
        """Whether the index has it."""
        is_other_fix = bool(self.beside) and is_fix(self.title)
        return self.number is not None and (bool(self.functions) or is_other_fix)


def read_changes(clone: Path, branch: str, after: str = "") -> Iterator[Change]:
    """Yield the changes on the first parents of ``branch`` in the order of their merge, those after
    the commit ``after`` only."""
    with tempfile.NamedTemporaryFile("w", suffix=".attributes") as attributes:
        attributes.write("*.py diff=python\n")  # hunks then name the function around them
        attributes.flush()
        git = ["git", "-C", str(clone), "-c", f"core.attributesFile={attributes.name}"]
        command = [*git, "log", "--first-parent", "--no-merges", "--reverse", "-p", "-U0"]
        command += ["--no-color", "--no-ext-diff", "--no-renames", "--date=short"]
        command += [f"--format={HEAD_FORMAT}", f"--since={SINCE}"]
        command += [
            f"{after}..{branch}" if after else branch,
            "--",
            "vllm/*.py",
            "tests/*.py",
            *_BESIDE,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
        assert process.stdout is not None
        yield from parse(process.stdout)
        if process.wait():
            raise SystemExit(f"{clone}: git log of {branch} failed")


def parse(lines: Iterable[str]) -> Iterator[Change]:
    """Yield the changes in the output of git log."""
    change: Change | None = None
    path = function = ""
    for line in lines:
        if line.startswith(_HEAD):
            if change is not None:
                yield change
            commit, date, title = line[1:].rstrip("\n").split("\x02", 2)
            change = Change(commit, date, title)
        elif change is None or line.startswith(("+++ /dev/null", "--- /dev/null")):
            continue
        elif line.startswith(("--- a/", "+++ b/")):
            path = line[6:].rstrip("\n")
            if path.startswith("vllm/"):
                change.functions.setdefault(path, {})
            elif not path.startswith("tests/"):
                change.beside.setdefault(path, {})
        elif not path.startswith("vllm/"):
            if path.startswith("tests/") and (added := _TEST.match(line)):
                change.tests.append(f"{path}::{added[1]}")
        elif match := _HUNK.match(line):
            found = _DEFINITION.match(match[1])
            function = found[1] if found else ""
        elif line[:1] in "+-":
            if found := _DEFINITION.match(line[1:]):
                function = found[1]
            _add(change, path, function, line)
    if change is not None:
        yield change


def _add(change: Change, path: str, function: str, line: str) -> None:
    text = line[1:].strip()
    if function:
        change.functions[path].setdefault(function)
    if len(text) >= MIN_LINE:
        lines = change.added if line[0] == "+" else change.removed
        lines.setdefault(path, set()).add(text)


def fix_of(change: Change, counts: Counter[str], first: int, max_terms: int = MAX_TERMS) -> Fix:
    """Return the change as the index has it. ``counts``: in how many changes each term occurs."""
    changed = {
        path.removeprefix("vllm/"): list(names)[:MAX_FUNCTIONS]
        for path, names in list((change.functions or change.beside).items())[:MAX_FUNCTIONS]
    }
    spoken, others = terms_of(change)
    kept = sorted(spoken, key=lambda term: (counts[term], term))[:max_terms]
    kept += sorted(others - spoken, key=lambda term: (counts[term], term))[:max_terms]
    title = _NUMBER.sub("", change.title).strip()
    names = [name for names in changed.values() for name in names]
    terms = {*kept} - words(title) - words(" ".join((*names, *changed)))
    removed = sorted({line for lines in change.removed.values() for line in lines}, key=len)
    return Fix(
        change.number or 0,
        change.commit[:9],
        change.date,
        title,
        changed,
        " ".join(sorted(terms)),
        "".join(sorted(map(digest, removed[::-1][:MAX_REMOVED]))),
        first,
        tuple(change.tests[:MAX_TESTS]) if is_fix(title) else (),
    )


def terms_of(change: Change) -> tuple[set[str], set[str]]:
    """Return the words in changed literals, and the other identifiers of the changed lines."""
    spoken: set[str] = set()
    others: set[str] = set()
    for side in (change.added, change.removed):
        for lines in side.values():
            for line in lines:
                for match in _STRING.finditer(line):
                    spoken |= identifiers(match[1] or match[2] or "")
                others |= identifiers(_STRING.sub(" ", line))
    return {w for w in spoken if not is_common(w)}, {w for w in others if not is_common(w)}
