"""What a release changed in each module, where no history says it: the difference between wheels."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from pytest_vllm_regress.answers.fixes.index import MIN_LINE, Fix

from .changes import Change, fix_of, terms_of

MAX_TERMS = 8
"""Words of literals, and other identifiers, of a module that a release changed."""


def differences(
    before: Mapping[str, bytes], after: Mapping[str, bytes], date: str, first: int
) -> list[Fix]:
    """Return what changed in each module that both releases have. ``first``: the number of the
    later one."""
    changes = list(_changes(before, after, date))
    counts: Counter[str] = Counter()
    for change in changes:
        for side in terms_of(change):
            counts.update(side)
    return [fix_of(change, counts, first, MAX_TERMS) for change in changes]


def _changes(
    before: Mapping[str, bytes], after: Mapping[str, bytes], date: str
) -> Iterator[Change]:
    for path in sorted(before.keys() & after.keys()):
        if not path.startswith("vllm/") or not path.endswith(".py") or before[path] == after[path]:
            continue
        old, new = _functions(before[path]), _functions(after[path])
        # New functions are features. What fixes a failure changes a function, or adds a method.
        names = [name for name, code in new.items() if old.get(name) != code]
        if names:
            lines = [_lines(before[path]), _lines(after[path])]
            yield Change(
                *("", date, ""),
                functions={path: dict.fromkeys(name.rpartition(".")[2] for name in names)},
                added={path: lines[1] - lines[0]},
                removed={path: lines[0] - lines[1]},
            )


def _functions(source: bytes) -> dict[str, list[str]]:
    """Return the lines of each function by its name within the module, without comments."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return {}
    lines = source.decode(errors="replace").split("\n")
    found: dict[str, list[str]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                own = map(str.strip, lines[child.lineno - 1 : child.end_lineno])
                code = [line for line in own if line and not line.startswith("#")]
                found[f"{prefix}{child.name}"] = code
            elif isinstance(child, ast.If | ast.Try):
                visit(child, prefix)

    visit(tree, "")
    return found


def _lines(source: bytes) -> set[str]:
    lines = (line.strip() for line in source.decode(errors="replace").split("\n"))
    return {line for line in lines if len(line) >= MIN_LINE and not line.startswith("#")}
