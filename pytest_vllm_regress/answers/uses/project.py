"""Read a project: its files within bounds, without following links out of it."""

from __future__ import annotations

import ast
import configparser
import os
import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from ...errors import UsageError
from ...util.documents import parse_json, parse_toml
from ...util.files import MAX_DEPTH, read_below
from ...util.versions import requirement_of, specifiers_of, version_of
from ..api_history.definitions import is_class
from ..api_history.store import History, intervals
from ..deployments.reader import DeploymentFinding, Pin, is_dockerfile, read
from .check import UseChecker
from .guards import Branches, VersionTests
from .own_modules import ChosenFunction, Import, chosen_functions, is_program, loaded_for
from .python import PythonReader, TooMuchWork
from .strings import StringReader
from .use import Declared, Place, Project, Use

_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_CARET = re.compile(r"\^\s*(\d+(?:\.\d+)*)")
_MALFORMED = re.compile(
    r"^[\s\"',\[]*vllm(?:\[[\w,-]*\])?\s*=(?!=)\s*\d[\w.*]*", re.IGNORECASE | re.MULTILINE
)
MAX_ITEMS = 50_000


class MalformedRequirement(ValueError):
    """Raised if the only line with a version of vLLM is not a valid requirement, such as
    ``vllm=0.8``."""


def declared_in(text: str, file: str) -> list[Declared]:
    """Return the ranges that a file declares; none for a file of another kind.

    Raises ``ValueError`` if it cannot be parsed.
    """
    try:
        specifiers = dict.fromkeys(_specifiers(text, file))
    except (SyntaxError, RecursionError, MemoryError, configparser.Error) as error:
        raise ValueError(str(error)) from None
    if not specifiers and (malformed := _MALFORMED.search(text)) and _is_list(file):
        raise MalformedRequirement(f"{malformed[0].strip()!r} is not a valid requirement")
    lines = {  # for each version in a line that names vllm, the first such line
        version: number
        for number, line in reversed(list(enumerate(text.splitlines(), 1)))
        if specifiers and "vllm" in line.lower()
        for version in _NUMBER.findall(line)
    }
    versions = ((specifier, _NUMBER.search(specifier)) for specifier in specifiers)
    return [
        Declared(specifier, Place(file, lines.get(version[0], 1) if version else 1))
        for specifier, version in versions
    ]


def _specifiers(text: str, file: str) -> Iterator[str]:
    """Yield the ranges in any list of requirements of the file, and in the tables of Poetry."""
    name = file.rpartition("/")[2]
    todo = deque[object]()
    if name == "pyproject.toml":
        todo.append(parse_toml(text))
    elif name == "setup.cfg":
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        todo += [list(section.values()) for section in parser.values()]
    elif name == "setup.py":
        todo.append(
            [node.value for node in ast.walk(_parsed(text)) if isinstance(node, ast.Constant)]
        )
    elif _is_list(file):
        todo.append([text])
    while todo and len(todo) < MAX_ITEMS:
        item = todo.popleft()
        if isinstance(item, dict):
            poetry = item.get("vllm")
            version = poetry.get("version") if isinstance(poetry, dict) else poetry
            if isinstance(version, str) and (specifier := _poetry(version)) is not None:
                yield specifier
            todo += [value for value in item.values() if isinstance(value, (dict, list))]
        elif isinstance(item, list):
            for entry in item:
                if isinstance(entry, str):
                    yield from _lines(entry)
                elif isinstance(entry, (dict, list)):
                    todo.append(entry)


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return ast.parse(text)


def _is_list(file: str) -> bool:
    """Return whether a file is a list of requirements, or contains one."""
    name = file.rpartition("/")[2]
    is_list = name.endswith((".txt", ".in")) and ("requirements" in file or "constraints" in file)
    return is_list or name == "pyproject.toml"


def _poetry(text: str) -> str | None:
    if match := _CARET.fullmatch(text.strip()):
        version = version_of(match[1])
        assert version is not None
        release = [*version.release, 0, 0]
        upper = f"{release[0] + 1}" if release[0] else f"0.{release[1] + 1}"
        return f">={match[1]},<{upper}"
    return text if text != "*" and specifiers_of(text) is not None else None


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        words = line.partition("#")[0].partition(" --")[0].strip().rstrip("\\").strip()
        if words[:4].lower() == "vllm":
            requirement = requirement_of(words)
            if (
                requirement is not None
                and canonicalize_name(requirement.name) == "vllm"
                and requirement.specifier
            ):
                yield str(requirement.specifier)


MAX_FILE = 2 * 1024 * 1024
MAX_FILES = 50_000
MAX_TOTAL = 512 * 1024 * 1024
MAX_NOTES = 20
MAX_PYTHON, MAX_LINE = 1024 * 1024, 64 * 1024
"""Limits of Python source: CPython takes time with the square of the length of an f-string."""
MAX_USES = 50_000
MAX_WORK = 100_000_000
"""Limit for all files together, see ``python.MAX_WORK``."""
MAX_DECLARED = 1000
_SKIPPED = frozenset(("node_modules", "site-packages", "__pycache__", "venv", "build", "dist"))
_READ = re.compile(
    r"Makefile|.*\.(?:py|ipynb|sh|bash|ya?ml|tpl|env|json|service|txt|in|cfg|toml)", re.DOTALL
)
_LISTS = ("requirements", "constraints")


def read_project(path: Path, history: History) -> Project:
    """Return what the files below ``path``, or one file, use of vLLM.

    Raises ``UsageError`` if there is no such file.
    """
    if not os.path.lexists(path):
        raise UsageError(
            f"{path}: no such file or directory. Give the directory of a project, or one of its files"
        )
    folder, names = (path, _files(path)) if path.is_dir() else (path.parent, iter([path.name]))
    reader = ProjectReader(history)
    for name in names:
        reader.read(folder, name)
    return reader.project()


class _Unreadable(Exception):
    """A file that cannot be read as what its name says."""


class ProjectReader:
    """Collects the uses and the declared ranges in the files of one project."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._v0 = releases_with_v0(history)
        self._checker = UseChecker(history)
        self._imports: dict[str, list[Import]] = {}
        self._functions: dict[str, dict[str, ChosenFunction]] = {}
        self._programs: list[str] = []
        self._strings = StringReader(history)
        self._uses: dict[Use, None] = {}
        self._declared: dict[Declared, None] = {}
        self._notes: list[str] = []
        self._count = self._bytes = self._work = 0

    def read(self, folder: Path, name: str) -> None:
        """Read one file. One that is too large or cannot be parsed is left out with a note."""
        try:
            content = read_below(folder, name, MAX_FILE)
        except (UsageError, OSError) as error:
            self._notes.append(f"left out: {error}")
            return
        self._count += 1
        self._bytes += len(content or b"")
        if content is None or b"vllm" not in content.lower():
            return
        if self._bytes > MAX_TOTAL:
            raise UsageError(f"{folder}: has more than {MAX_TOTAL} bytes; give a part of it")
        text = content.decode("utf-8-sig", errors="replace")
        findings = [] if name.endswith((".py", ".ipynb")) else list(read(text, name))
        try:
            self._uses |= dict.fromkeys(self._uses_in(text, name, findings))
        except _Unreadable as problem:
            self._notes.append(f"left out: {name}: {problem}")
        if len(self._uses) > MAX_USES or self._work > MAX_WORK:
            raise UsageError(
                f"{folder}: has more than {MAX_USES} uses, or takes too much work; give a part of it"
            )
        self._declare(text, name, findings)

    def _declare(self, text: str, name: str, findings: Iterable[DeploymentFinding]) -> None:
        try:
            declared = declared_in(text, name)
        except ValueError as problem:
            declared = []
            why = problem if isinstance(problem, MalformedRequirement) else "cannot be parsed"
            if not name.endswith(".py"):  # which is noted when its uses are read
                unknown = "so that the range of vllm in it is not known"
                self._notes.append(f"left out: {name}: {why}, {unknown}")
        if not name.endswith(".json") and not any(word in name for word in _LISTS):
            declared += [
                Declared(finding.specifier, Place(name, finding.line), local=True)
                for finding in findings
                if isinstance(finding, Pin)
            ]
        self._declared |= dict.fromkeys(declared)
        if len(self._declared) > MAX_DECLARED:
            self._notes.append(f"left out: {name}: more than {MAX_DECLARED} declared ranges")
            self._declared = dict.fromkeys(list(self._declared)[:MAX_DECLARED])

    def project(self) -> Project:
        if not self._count:
            what = "no Python files, notebooks, configuration, requirements or scripts"
            self._notes.append(f"nothing to read: {what}")
        notes = self._notes[:MAX_NOTES]
        if len(self._notes) > MAX_NOTES:
            notes.append(f"{len(self._notes) - MAX_NOTES} more files were left out")
        own = self._strings.own_routes
        uses = [use for use in self._uses if use.kind != "route" or use.targets[0] not in own]
        return Project(
            tuple(self._where_loaded(uses)),
            tuple(self._declared),
            self._count,
            tuple(notes),
            tuple(self._strings.commands),
        )

    def _where_loaded(self, uses: Iterable[Use]) -> Iterator[Use]:
        """Yield the uses; those in modules and functions that the project uses for some releases
        only are restricted to these."""
        everywhere = frozenset(range(len(self._history.releases)))
        loaded = loaded_for(self._imports, self._programs, everywhere)
        chosen = chosen_functions(self._functions, self._imports, everywhere)
        for use in uses:
            before = everywhere if use.live is None else use.live
            file, line = use.place.file, use.place.line
            functions = (f.live for f in chosen.get(file, ()) if line in f)
            live = before.intersection(loaded.get(file, everywhere), *functions)
            yield use if live == before else replace(use, live=live)

    def _uses_in(
        self, text: str, name: str, findings: Iterable[DeploymentFinding]
    ) -> Iterator[Use]:
        if name.endswith(".py"):
            reader = self._reader(name)
            yield from self._python(text, reader)
            self._imports[name], self._functions[name] = reader.imports, reader.functions
            self._programs += [name] * is_program(text)
        elif name.endswith(".ipynb"):
            yield from self._notebook(text, name)
        elif not name.endswith((".txt", ".in", ".cfg", ".toml")):
            for finding in findings:
                yield from self._strings.read(finding, name)

    def _python(self, text: str, reader: PythonReader, cell: int = 0) -> list[Use]:
        if len(text) > MAX_PYTHON or max(map(len, text.split("\n"))) > MAX_LINE:
            raise _Unreadable(f"has more than {MAX_PYTHON} characters, or {MAX_LINE} in a line")
        try:
            tree = _parsed(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise _Unreadable("cannot be parsed") from None
        try:
            before = reader.work
            return reader.read(tree, cell)
        except RecursionError:
            raise _Unreadable("is nested too deeply") from None
        except TooMuchWork:
            raise _Unreadable(
                "takes too much work: the product of its names, branches, bases or keywords is huge"
            ) from None
        finally:
            self._work += reader.work - before

    def _notebook(self, text: str, name: str) -> Iterator[Use]:
        try:
            document = parse_json(text)
        except ValueError:
            raise _Unreadable("cannot be parsed") from None
        cells = document.get("cells") if isinstance(document, dict) else None
        reader = self._reader(name)
        for number, cell in enumerate(cells if isinstance(cells, list) else [], 1):
            if isinstance(cell, dict) and cell.get("cell_type") == "code":
                source = cell.get("source")
                lines = "".join(map(str, source)) if isinstance(source, list) else str(source)
                yield from self._cell(lines, name, number, reader)

    def _reader(self, name: str) -> PythonReader:
        tests = VersionTests(self._history.releases, self._v0, self._asked)
        return PythonReader(name, tests, self._strings)

    def _asked(self, kind: str, targets: tuple[str, ...], detail: str) -> Branches:
        """Return the releases for which a test for an attribute or a parameter is true, and those
        for which it may be false."""
        statuses = self._checker.statuses(Use(kind, targets, Place("", 0), detail))
        return (
            frozenset(n for n, status in enumerate(statuses) if not status.missing),
            frozenset(n for n, status in enumerate(statuses) if status.missing or not status.sure),
        )

    def _cell(self, text: str, name: str, number: int, reader: PythonReader) -> Iterator[Use]:
        """Yield the uses in a cell: Python, and commands behind ``!`` and ``%``."""
        shell, python = [], []
        for line in text.split("\n"):
            is_command = line.lstrip().startswith(("!", "%"))
            shell.append(line.lstrip(" !") if is_command else "")
            python.append("" if is_command else line)
        for finding in read("\n".join(shell), name):
            yield from self._strings.read(finding, name)
        try:
            yield from self._python("\n".join(python), reader, number)
        except _Unreadable as problem:
            self._notes.append(f"left out: {name}: cell {number} {problem}")


def releases_with_v0(history: History) -> frozenset[int]:
    """Return the numbers of the releases with the V0 engine: later ones have ``LLMEngine`` as
    another name of the V1 engine."""
    timeline = history.symbols("vllm.engine.llm_engine").get("LLMEngine", [])
    return frozenset(
        number
        for start, end, definition in intervals(timeline, len(history.releases))
        if is_class(definition)
        for number in range(start, end)
    )


def _files(root: Path) -> Iterator[str]:
    """Yield the files to read below ``root``, in the order of their names.

    Links are not followed.
    """
    count = 0
    for folder, folders, files in os.walk(root, followlinks=False):
        if os.path.relpath(folder, root).count(os.sep) >= MAX_DEPTH:
            raise UsageError(
                f"{root}: has folders nested more than {MAX_DEPTH} deep; give a part of it"
            )
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED
            and (not name.startswith(".") or name == ".github")
            and not os.path.lexists(os.path.join(folder, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            if _READ.fullmatch(name) or is_dockerfile(name):
                count += 1
                if count > MAX_FILES:
                    raise UsageError(f"{root}: more than {MAX_FILES} files; give a part of it")
                yield os.path.relpath(os.path.join(folder, name), root)
