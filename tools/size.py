"""How large the code is: ``python -m tools.size``. Prints one line for each goal, and folders with
``--folders``.

Tokens are counted, not lines, so that packing lines gains nothing. Comments and docstrings do not
count: they are welcome.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

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
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules(root: Path) -> list[Path]:
    """Return the modules below a folder, in their order; those in ``data`` are no code of ours."""
    return sorted(path for path in root.rglob("*.py") if "data" not in path.parts)


def tokens(path: Path) -> list[str]:
    """Return the tokens of a module without comments, docstrings and layout."""
    text = path.read_text(encoding="utf-8")
    prose = {
        line for first, last in _docstrings(ast.parse(text)) for line in range(first, last + 1)
    }
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT and token.start[0] not in prose
    ]


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield first and last line of every string that is a statement of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node.lineno, node.end_lineno or node.lineno


def packages(root: Path) -> list[str]:
    """Return the names of the packages directly below the package."""
    return sorted(path.parent.name for path in root.glob("*/__init__.py"))


def repeated_share(paths: Sequence[Path]) -> float:
    """Return the share of tokens in runs of ``REPEATED`` that stand somewhere else, too.

    Imports do not count: modules that need the same things look the same there.
    """
    runs: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    texts = [_without_imports(path) for path in paths]
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


def _without_imports(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    prose = {line for first, last in _docstrings(tree) for line in range(first, last + 1)}
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _LAYOUT and token.start[0] not in prose | imports
    ]


def functions(path: Path) -> Iterator[tuple[str, int, int, bool]]:
    """Yield name, lines without docstring, parameters, and whether it is a command, of each
    function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, _FUNCTIONS):
            first = node.body[0]
            is_documented = ast.get_docstring(node) is not None
            prose = (first.end_lineno or 0) - first.lineno + 1 if is_documented else 0
            arguments = node.args
            count = len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])
            is_method = bool(arguments.args) and arguments.args[0].arg in ("self", "cls")
            name = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - prose
            yield name, lines, count - is_method, _is_command(path)


def _is_command(path: Path) -> bool:
    return "cli" in path.parts


def repeated_classes(paths: Sequence[Path]) -> list[str]:
    """Return the names of public classes that several modules define."""
    names = Counter(
        node.name
        for path in paths
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folders", action="store_true", help="tokens and modules of each folder")
    arguments = parser.parse_args()
    package, tools = modules(PACKAGE), modules(TOOLS)
    sizes = {path: len(tokens(path)) for path in [*package, *tools]}
    if arguments.folders:
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
