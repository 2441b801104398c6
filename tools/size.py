"""How large the code is: ``python -m tools.size``. Prints one line for each goal, and folders with
``--folders``.

Tokens are counted, not lines, so that packing lines gains nothing. Comments and docstrings do not
count: they are welcome.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from tools.options import MOST_OPTIONS, counts

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_vllm_regress"
TOOLS = ROOT / "tools"
REPEATED = 40
"""Length of a run of equal tokens that counts as repeated."""
_LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def modules(root: Path) -> list[Path]:
    """Return the modules below a folder, in their order; those in ``data`` are no code of ours."""
    return sorted(path for path in root.rglob("*.py") if "data" not in path.parts)


def tokens(path: Path, *, imports: bool = True) -> list[str]:
    """Return the tokens of a module without comments, docstrings and layout."""
    text = path.read_text(encoding="utf-8")
    left_out = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
        and (_is_docstring(node) or (not imports and isinstance(node, ast.Import | ast.ImportFrom)))
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT and token.start[0] not in left_out
    ]


def _is_docstring(node: ast.stmt) -> bool:
    """Return whether a node is a string that is a statement of its own."""
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def packages(root: Path) -> list[str]:
    """Return the names of the packages directly below the package."""
    return sorted(path.parent.name for path in root.glob("*/__init__.py"))


def repeated_share(paths: Sequence[Path]) -> float:
    """Return the share of tokens in runs of ``REPEATED`` that stand somewhere else, too.

    Imports do not count: modules that need the same things look the same there.
    """
    runs: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    texts = [tokens(path, imports=False) for path in paths]
    for number, words in enumerate(texts):
        for at in range(len(words) - REPEATED + 1):
            runs[tuple(words[at : at + REPEATED])].append((number, at))
    covered = {
        (number, at + offset)
        for places in runs.values()
        if len(places) > 1
        for number, at in places
        for offset in range(REPEATED)
    }
    return len(covered) / max(1, sum(map(len, texts)))


def functions(path: Path) -> Iterator[tuple[str, int, int, bool]]:
    """Yield name, lines without docstring, parameters, and whether it is a command, of each
    function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            is_documented = ast.get_docstring(node) is not None
            prose = (first.end_lineno or 0) - first.lineno + 1 if is_documented else 0
            arguments = node.args
            count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
            is_method = bool(arguments.args) and arguments.args[0].arg in ("self", "cls")
            name = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - prose
            yield name, lines, count - is_method, "cli" in path.relative_to(PACKAGE).parts


def repeated_classes(paths: Sequence[Path]) -> list[str]:
    """Return the names of public classes that several modules define."""
    names = Counter(
        node.name
        for path in paths
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def main(folders: bool = False) -> None:
    """Print the figures; with --folders also tokens and modules of each folder."""
    package, tools = modules(PACKAGE), modules(TOOLS)
    sizes = {path: len(tokens(path)) for path in [*package, *tools]}
    if folders:
        for folder in packages(PACKAGE):
            inside = [path for path in package if path.relative_to(PACKAGE).parts[0] == folder]
            print(f"{folder:14} {sum(sizes[p] for p in inside):7,} tokens {len(inside):4} modules")
    of_package, of_tools = (sum(sizes[path] for path in paths) for paths in (package, tools))
    everything = [row for path in package for row in functions(path)]
    largest = max(everything, key=lambda row: row[1])
    widest = max((row for row in everything if not row[3]), key=lambda row: row[2])
    names = Counter(path.stem for path in package if path.stem != "__init__")
    lines = [line for path in package for line in path.read_text(encoding="utf-8").splitlines()]
    options = counts()
    of_plugin = options.pop("pytest")
    of_commands = sum(options.values())
    for what, value in (
        ("tokens of the package", f"{of_package:,} (goal 350,000)"),
        ("tokens of package and tools", f"{of_package + of_tools:,} (goal 385,000)"),
        ("modules", f"{len(package)} (goal 350)"),
        ("packages", f"{len(packages(PACKAGE))} (goal 14)"),
        ("options of the commands", f"{of_commands} of {len(options)} commands"),
        ("options of the plugin", f"{of_plugin}"),
        ("options together", f"{of_commands + of_plugin} (goal {MOST_OPTIONS})"),
        ("largest function", f"{largest[1]} lines: {largest[0]} (goal 80)"),
        ("most parameters", f"{widest[2]}: {widest[0]} (goal 8, commands apart)"),
        ("repeated code", f"{repeated_share(package):.2%} (goal 0.3 %)"),
        ("public classes of one name", ", ".join(repeated_classes(package)) or "none"),
        (
            "module names more than twice",
            ", ".join(f"{name} ({count})" for name, count in names.items() if count > 2) or "none",
        ),
        ("lines over 100 characters", f"{sum(len(line) > 100 for line in lines) / len(lines):.1%}"),
        ("comments", f"{sum(line.lstrip().startswith('# ') for line in lines):,}"),
    ):
        print(f"{what:30} {value}")


if __name__ == "__main__":
    typer.run(main)
