"""Read a project: its files within bounds, without following links out of it."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...errors import UsageError
from ...util.documents import parse_json
from ...util.files import MAX_DEPTH, read_below
from ..api_history.definitions import is_class
from ..api_history.option_names import OptionNames
from ..api_history.service import Option
from ..api_history.store import History
from ..api_history.timeline import intervals
from ..deployments.reader import DeploymentFinding, Pin, is_dockerfile, read
from .check import UseChecker
from .declared import MalformedRequirement, declared_in
from .guards import Branches, VersionTests
from .own_modules import ChosenFunction, Import, chosen_functions, is_program, loaded_for
from .python import PythonReader, TooMuchWork
from .strings import KnownNames, StringReader
from .use import Declared, Place, Project, Use

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
_TEXT = (
    ".sh",
    ".bash",
    ".yaml",
    ".yml",
    ".tpl",
    ".env",
    ".json",
    ".service",
    ".txt",
    ".in",
    ".cfg",
    ".toml",
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
        self._releases = history.releases
        self._v0 = releases_with_v0(history)
        self._checker = UseChecker(history)
        self._imports: dict[str, list[Import]] = {}
        self._functions: dict[str, dict[str, ChosenFunction]] = {}
        self._programs: list[str] = []
        self._strings = StringReader(known_names(history))
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
        declared: Iterable[Declared] = ()
        try:
            declared = declared_in(text, name)
        except ValueError as problem:
            why = problem if isinstance(problem, MalformedRequirement) else "cannot be parsed"
            if not name.endswith(".py"):  # which is noted when its uses are read
                self._notes.append(
                    f"left out: {name}: {why}, so that the range of vllm in it is not known"
                )
        if not name.endswith(".json") and not any(word in name for word in _LISTS):
            pins = (finding for finding in findings if isinstance(finding, Pin))
            local = (Declared(pin.specifier, Place(name, pin.line), local=True) for pin in pins)
            declared = itertools.chain(declared, local)
        self._declared |= dict.fromkeys(itertools.islice(declared, MAX_DECLARED + 1))
        if len(self._declared) > MAX_DECLARED:
            self._notes.append(f"left out: {name}: more than {MAX_DECLARED} declared ranges")
            self._declared = dict(itertools.islice(self._declared.items(), MAX_DECLARED))

    def project(self) -> Project:
        if not self._count:
            self._notes.append(
                "nothing to read: no Python files, notebooks, configuration, requirements or scripts"
            )
        notes = self._notes[:MAX_NOTES]
        if len(self._notes) > MAX_NOTES:
            notes.append(f"{len(self._notes) - MAX_NOTES} more files were left out")
        own = self._strings.own_routes
        uses = tuple(use for use in self._uses if use.kind != "route" or use.targets[0] not in own)
        commands = tuple(self._strings.commands)
        return Project(
            self._where_loaded(uses), tuple(self._declared), self._count, tuple(notes), commands
        )

    def _where_loaded(self, uses: tuple[Use, ...]) -> tuple[Use, ...]:
        """Return the uses; those in modules and functions that the project uses for some releases
        only are restricted to these."""
        all_releases = frozenset(range(len(self._releases)))
        loaded = loaded_for(self._imports, self._programs, all_releases)
        chosen = chosen_functions(self._functions, self._imports, all_releases)

        def restricted(use: Use) -> Use:
            file = use.place.file
            live = all_releases if use.live is None else use.live
            for function in chosen.get(file, ()):
                live = live & function.live if use.place.line in function else live
            live &= loaded.get(file, all_releases)
            return (
                use if live == (use.live or all_releases) else dataclasses.replace(use, live=live)
            )

        return tuple(map(restricted, uses)) if loaded or chosen else uses

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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                tree = ast.parse(text)
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
        return PythonReader(
            name, VersionTests(self._releases, self._v0, self._asked), self._strings
        )

    def _asked(self, kind: str, targets: tuple[str, ...], detail: str) -> Branches:
        """Return the releases for which a test for an attribute or a parameter is true, and those
        for which it may be false."""
        statuses = self._checker.statuses(Use(kind, targets, Place("", 0), detail))
        without = frozenset(number for number, status in enumerate(statuses) if status.missing)
        unsure = frozenset(number for number, status in enumerate(statuses) if not status.sure)
        all_releases = frozenset(range(len(statuses)))
        return all_releases - without, without | unsure

    def _cell(self, text: str, name: str, number: int, reader: PythonReader) -> Iterator[Use]:
        """Yield the uses in a cell: Python, and commands behind ``!`` and ``%``."""
        is_command = [line.lstrip().startswith(("!", "%")) for line in text.split("\n")]
        lines = text.split("\n")
        shell = "\n".join(
            line.lstrip(" !") if command else ""
            for line, command in zip(lines, is_command, strict=True)
        )
        python = "\n".join(
            "" if command else line for line, command in zip(lines, is_command, strict=True)
        )
        for finding in read(shell, name):
            yield from self._strings.read(finding, name)
        try:
            yield from self._python(python, reader, number)
        except _Unreadable as problem:
            self._notes.append(f"left out: {name}: cell {number} {problem}")


def known_names(history: History) -> KnownNames:
    """Return the names that any release of the history has."""
    options = history.table("options")
    texts = {
        name: [Option.of(text) for text in timeline[1::2] if isinstance(text, str)]
        for name, timeline in options.items()
    }
    choices = {name for name, rows in texts.items() if any(option.choices for option in rows)}
    return KnownNames(
        OptionNames.of(history),
        set(history.table("environment")),
        set(history.table("routes")),
        set(history.table("metrics")),
        choices,
    )


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
            path = os.path.relpath(os.path.join(folder, name), root)
            if (
                name.endswith((".py", ".ipynb", *_TEXT))
                or is_dockerfile(name)
                or name == "Makefile"
            ):
                count += 1
                if count > MAX_FILES:
                    raise UsageError(f"{root}: more than {MAX_FILES} files; give a part of it")
                yield path
