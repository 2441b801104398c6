"""Read a project: its files within bounds, without following links out of it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from ...errors import UsageError
from ...util.documents import parse_json
from ...util.files import MAX_DEPTH, read_below, why_missing
from ..api_history.definitions import absolute, is_class, module_name
from ..api_history.lookup import Missing, Unknown
from ..api_history.store import History, intervals
from ..deployments.file_names import is_dockerfile
from ..deployments.reader import (
    DeploymentFinding,
    Pin,
    code_lines,
    is_prose,
    read,
)
from .check import UseChecker
from .declared import MalformedRequirement, declared_in, parsed
from .guards import Branches, VersionTests
from .own_modules import (
    ChosenFunction,
    Given,
    Import,
    Replaced,
    chosen_functions,
    doubted_in,
    is_program,
    loaded_for,
    named_for,
    names_release,
)
from .python import NOTHING, Exported, PythonReader, TooMuchWork
from .scope import ARGUMENTS, Releases
from .strings import StringReader
from .use import HEADLINE, TESTS, Declared, Place, Project, Use, part_of

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
MAX_SECONDS = 300
MAX_FIELDS = 1000
"""Braces in Python source above which a process with limits parses it first."""
PARSE_SECONDS, PARSE_MEMORY = 5, 1024 * 1024 * 1024
MAX_PARSING = 30.0
"""Seconds that these processes may take for one project."""
MAX_REPLACED = 50
"""Most names of vLLM with the same last part that a project replaces."""
MAX_IMPORTED = 3
"""Length of a chain of the project's own modules in which the version is looked for."""
_PARSE = """
import ast, resource, sys
seconds, memory = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
try:
    ast.parse(sys.stdin.buffer.read())
except (SyntaxError, ValueError, RecursionError):
    pass  # which is quick as well
"""
_IN_TEXTS = frozenset(("option", "choice", "parser", "route", "metric"))
_RUNS = re.compile(
    r"\b(?:subprocess|Popen)\b|\bcreate_subprocess|\bos\.system\(|\bRemote\w*Server\b|testcontainers"
)
"""What starts a process."""
_F_STRING = re.compile(r"(?i)\b(?:f|rf|fr)['\"]")
_ROUTE = re.compile(rb"""(?m)(?:^[ \t]*@[\w.]+|\.add_[a-z_]+)\(\s*["'](/[^"'\n]{1,100})["']""")
_IMPORTED = re.compile(rb"(?m)^[ \t]*from[ \t]+[\w.]+[ \t]+import[ \t]+(\([^()]*\)|[^\n(]*)")
_ARGUMENT = re.compile(rb"""\.add_argument\([^()]*?["'](--[a-zA-Z][\w-]*)["']""")
_GETS = re.compile(r"\b(?:requests?|httpx|client|session|aiohttp)\.get\b|urlopen")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_SKIPPED = frozenset(("node_modules", "site-packages", "__pycache__", "venv", "build", "dist"))
_READ = re.compile(
    r"(?!(?:.*/)?(?i:change|history|release|news)[^/]*\.(?:md|mdx|markdown)$)"
    r"(?:(?:.*/)?(?:Makefile|[Jj]ustfile|Procfile)|.*\.(?:py|ipynb|[bkz]?a?sh|slurm|sbatch|mk|ps1|md|mdx|markdown|ya?ml|tpl|j2|env|json|service|txt|in|cfg|toml))",
    re.DOTALL,
)
_SCRIPT = re.compile(rb"#![^\n]*sh\b")
"""The beginning of a script without a suffix."""
_LISTS = ("requirements", "constraints")


def read_project(path: Path, history: History) -> Project:
    """Return what the files below ``path``, or one file, use of vLLM.

    Raises ``UsageError`` if there is no such file.
    """
    if not os.path.lexists(path):
        raise UsageError(
            f"{path}: {why_missing(path)}. Give the directory of a project, or one of its files"
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

    def __init__(self, history: History, clock: Callable[[], float] = time.monotonic) -> None:
        self._history = history
        self._v0 = releases_with_v0(history)
        self._checker = UseChecker(history)
        self._imports: dict[str, list[Import]] = {}
        self._functions: dict[str, dict[str, list[ChosenFunction]]] = {}
        self._programs: list[str] = []
        self._passing: set[str] = set()
        self._replaced: dict[str, list[Replaced]] = defaultdict(list)
        self._strings = StringReader(history)
        self._uses: dict[Use, None] = {}
        self._declared: dict[Declared, None] = {}
        self._notes: list[str] = []
        self._count = self._bytes = self._work = self._late = 0
        self._clock, self._began = clock, clock()
        self._folder = Path()
        self._exported: dict[str, Exported] = {}
        self._modules: dict[str, tuple[PythonReader, list[Use]]] = {}
        self._depth = 0
        self._parsing = 0.0
        self._imported_elsewhere: set[str] = set()
        self._called: set[str] = set()
        self._arguments: set[str] = set()
        self._has_parser = False
        self._running: set[str] = set()
        """Files that may start a process."""

    def read(self, folder: Path, name: str) -> None:
        """Read one file. One that is too large or cannot be parsed is left out with a note, and so
        are those after ``MAX_SECONDS``."""
        if self._clock() - self._began > MAX_SECONDS:
            self._late += 1
            return
        self._folder = folder
        try:
            content = read_below(folder, name, MAX_FILE)
        except (UsageError, OSError) as error:
            self._notes.append(f"left out: {error}")
            return
        if not (_READ.fullmatch(name) or is_dockerfile(name) or _SCRIPT.match(content or b"")):
            return  # a file without a suffix
        self._count += 1
        self._bytes += len(content or b"")
        if content is None or b"vllm" not in content.lower():
            self._skim(content or b"", name)
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
        if name.endswith(".py") and "vllm:" in text and _reads_metrics(text):
            self._strings.scraping.add(name)
        if not name.endswith(".py") or _RUNS.search(text):
            self._running.add(name)
        self._declare(text, name, findings)

    def _skim(self, content: bytes, name: str) -> None:
        """Note what a file that does not mention vLLM says about other files: routes of the
        project's own server, and what it imports from them."""
        if name.endswith(".py"):
            for route in _ROUTE.findall(content):
                self._strings.define(route.decode(errors="replace"))
            self._arguments |= {o.decode().replace("_", "-") for o in _ARGUMENT.findall(content)}
            for names in _IMPORTED.findall(content):
                self._imported_elsewhere |= set(_IDENTIFIER.findall(names.decode(errors="replace")))

    def _declare(self, text: str, name: str, findings: Iterable[DeploymentFinding]) -> None:
        try:
            declared = declared_in(text, name)
        except ValueError as problem:
            declared = []
            why = problem if isinstance(problem, MalformedRequirement) else "cannot be parsed"
            if not name.endswith(".py"):  # which is noted when its uses are read
                unknown = "so that the range of vllm in it is not known"
                self._notes.append(f"left out: {name}: {why}, {unknown}")
        if not (name.endswith(".json") or is_prose(name)) and not any(
            word in name for word in _LISTS
        ):
            declared += [
                Declared(finding.specifier, Place(name, finding.line), local=True)
                for finding in findings
                if isinstance(finding, Pin) and finding.specifier
            ]
        self._declared |= dict.fromkeys(declared)
        if len(self._declared) > MAX_DECLARED:
            self._notes.append(f"left out: {name}: more than {MAX_DECLARED} declared ranges")
            self._declared = dict.fromkeys(list(self._declared)[:MAX_DECLARED])

    def project(self) -> Project:
        if not self._count:
            what = "no Python files, notebooks, configuration, requirements or scripts"
            self._notes.append(f"nothing to read: {what}")
        if self._late:
            self._notes.insert(
                0,
                f"left out: {self._late} files, after {MAX_SECONDS} s; give a part of the project",
            )
        notes = self._notes[:MAX_NOTES]
        if len(self._notes) > MAX_NOTES:
            notes.append(f"{len(self._notes) - MAX_NOTES} more files were left out")
        with_vllm = {
            use.place.file
            for use in self._uses
            if use.kind in HEADLINE
            and (use.kind not in _IN_TEXTS or use.place.file in self._running)
        }
        uses = [
            use
            for use in self._uses
            if not self._is_own(use)
            # A test that does not run vLLM has answers and commands of its own making.
            and (use.kind not in _IN_TEXTS or use.part != TESTS or use.place.file in with_vllm)
        ]
        return Project(
            tuple(self._where_loaded(self._strings.with_alternatives(uses))),
            tuple(self._declared),
            self._count,
            tuple(notes),
            tuple(self._strings.commands),
        )

    def _is_own(self, use: Use) -> bool:
        """Return whether a route, metric or argument is the project's own, or a method that overrides one of
        vLLM is called by the project itself: then it is not known who else calls it."""
        if use.detail == ARGUMENTS:
            return not self._has_parser or use.targets[0] in self._arguments
        return use.detail in self._called if use.kind == "override" else self._strings.is_own(use)

    def _where_loaded(self, uses: Iterable[Use]) -> Iterator[Use]:
        """Yield the uses; those in modules and functions that the project uses for some releases
        only are restricted to these."""
        everywhere = frozenset(range(len(self._history.releases)))
        loaded = {
            **named_for(self._imports, self._programs, self._chosen),
            **loaded_for(self._imports, self._programs, everywhere),
        }
        chosen = chosen_functions(
            self._functions, self._imports, everywhere, self._imported_elsewhere
        )
        doubted = doubted_in(self._imports)
        for use in uses:
            before = everywhere if use.live is None else use.live
            file, line = use.place.file, use.place.line
            functions = [f for f in chosen.get(file, ()) if line in f]
            live = before.intersection(loaded.get(file, everywhere), *(f.live for f in functions))
            live = live.difference(*self._replaced_for(use))
            doubts = use.perhaps, *(f.perhaps for f in functions), doubted.get(file, "")
            is_named = file not in loaded and names_release(file)
            perhaps = next(filter(None, doubts), "a release in the file's name" if is_named else "")
            is_same = (live, perhaps) == (before, use.perhaps)
            yield use if is_same else replace(use, live=live, perhaps=perhaps)

    def _chosen(self, versions: Sequence[str]) -> Sequence[Releases]:
        return self._tests().chosen(list(map(ast.Constant, versions)))

    def _replaced_for(self, use: Use) -> Iterator[Releases]:
        """Yield the releases for which the project replaces the used name with an object of its own."""
        is_concerned = self._replaced and use.kind in ("name", "keyword", "call")
        for target in use.targets if is_concerned else ():
            *owners, last = accumulate(target.split("."), "{}.{}".format)
            for path in (*owners, last):
                owner, _, name = path.removesuffix("()").rpartition(".")
                for replaced in self._replaced.get(name, ()):
                    if self._takes_place(replaced, use, path == last) and self._is_same(
                        owner, replaced.path.rpartition(".")[0]
                    ):
                        yield replaced.live

    def _takes_place(self, replaced: Replaced, use: Use, is_whole: bool) -> bool:
        """Return whether a use is of what the project assigned, if it is of that name."""
        is_other_file = use.place.file != replaced.file
        if part_of(replaced.file) == TESTS if is_other_file else replaced.kept:
            return False
        if replaced.module:
            return True
        of_instance = use.targets[0].rpartition(".")[0].endswith("()")
        functions = self._functions.get(use.place.file, {}).values() if of_instance else ()
        # An instance that a function gets was made when the module was complete.
        runs_later = any(use.place.line in one for same in functions for one in same)
        is_later = is_other_file or runs_later or use.place.line > replaced.line
        if is_whole and use.kind == "name":
            # An import fails where the name does not exist, and so does reading it to keep it.
            return is_later and bool(use.roots)
        is_own = bool(replaced.value) and replaced.value not in self._passing
        return is_later and is_own

    def _is_same(self, one: str, other: str) -> bool:
        """Return whether two paths name the same object in any release."""
        if one == other:
            return True
        return any(
            found is not None and found == self._found(other, number)
            for number in range(len(self._history.releases))
            for found in [self._found(one, number)]
        )

    def _found(self, path: str, release: int) -> str | None:
        try:
            return self._checker.lookup(release).find(path).path
        except (Missing, Unknown):
            return None

    def _uses_in(
        self, text: str, name: str, findings: Iterable[DeploymentFinding]
    ) -> Iterator[Use]:
        if name.endswith(".py"):
            reader, uses = self._module(text, name)
            yield from uses
            own = reader.own
            self._imports[name], self._functions[name] = own.imports, own.functions
            self._programs += [name] * is_program(text)
            self._passing |= own.passing
            self._arguments |= own.arguments
            self._has_parser |= own.has_parser
            for replaced in own.replaced:
                same_name = self._replaced[replaced.path.rpartition(".")[2]]
                if len(same_name) < MAX_REPLACED:
                    same_name.append(replaced)
            if part_of(name) != TESTS:
                self._called |= own.called
        elif name.endswith(".ipynb"):
            yield from self._notebook(text, name)
        elif is_prose(name):
            yield from self._strings.read_document(findings, code_lines(text), name)
        elif not name.endswith((".txt", ".in", ".cfg", ".toml")):
            for finding in findings:
                yield from self._strings.read(finding, name)

    def _module(self, text: str, name: str) -> tuple[PythonReader, list[Use]]:
        """Return the reader of a module, which was read at most once, and its uses."""
        if name not in self._modules:
            reader = self._reader(name)
            uses = self._python(text, reader)
            if given := reader.own.given:
                reader = self._reader(name, given)
                uses = self._python(text, reader)
            self._modules[name] = reader, uses
        return self._modules[name]

    def _python(self, text: str, reader: PythonReader, cell: int = 0) -> list[Use]:
        if len(text) > MAX_PYTHON or max(map(len, text.split("\n"))) > MAX_LINE:
            raise _Unreadable(f"has more than {MAX_PYTHON} characters, or {MAX_LINE} in a line")
        if text.count("{") > MAX_FIELDS and _F_STRING.search(text):
            self._try_to_parse(text)
        try:
            tree = parsed(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise _Unreadable("cannot be parsed") from None
        try:
            before = reader.work
            return reader.read(tree, cell, text)
        except RecursionError:
            raise _Unreadable("is nested too deeply") from None
        except TooMuchWork:
            raise _Unreadable(
                "takes too much work: the product of its names, branches, bases or keywords is huge"
            ) from None
        finally:
            self._work += reader.work - before

    def _try_to_parse(self, text: str) -> None:
        """Parse Python source in a process with limits. Raises ``_Unreadable`` above them."""
        before = self._clock()
        command = [sys.executable, "-I", "-c", _PARSE, str(PARSE_SECONDS), str(PARSE_MEMORY)]
        if self._parsing < MAX_PARSING:
            process = subprocess.run(
                command,
                input=text.encode(errors="replace"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            self._parsing += self._clock() - before
            if process.returncode == 0:
                return
        raise _Unreadable(
            f"cannot be parsed within {PARSE_SECONDS} s and {PARSE_MEMORY // 2**20} MiB (large f-strings)"
        )

    def _exports(self, node: ast.ImportFrom, file: str, exported: str) -> Exported:
        """Return what is known of the names in the project's module that a statement imports. If one
        of these is a module itself, what that has is called "name.x"."""
        name = absolute(module_name(file), file.endswith("__init__.py"), node.level, node.module)
        names, kept = self._exports_of(name, file, bool(node.level))
        if exported not in names and exported not in kept and f"{exported}()" not in kept:
            _, inside = self._exports_of(f"{name}.{exported}".lstrip("."), file, bool(node.level))
            kept = {**kept, **{f"{exported}.{key}": test for key, test in inside.items()}}
        return names, kept

    def _exports_of(self, name: str, file: str, is_relative: bool) -> Exported:
        path = name.replace(".", "/")
        if not path:
            return NOTHING
        folders = (
            [""] if is_relative else [*accumulate(file.split("/")[:-1], "{}{}/".format), "src/"]
        )
        for folder in ["", *folders]:
            for candidate in (f"{folder}{path}.py", f"{folder}{path}/__init__.py"):
                if candidate in self._exported:
                    return self._exported[candidate]
                if os.path.isfile(self._folder / candidate):
                    return self._exported_by(candidate)
        return NOTHING

    def _exported_by(self, file: str) -> Exported:
        self._exported[file] = NOTHING  # for modules that import each other
        try:
            content = read_below(self._folder, file, MAX_FILE)
        except (UsageError, OSError):
            return NOTHING
        if content and b"vllm" in content and self._depth < MAX_IMPORTED:
            self._depth += 1
            with suppress(_Unreadable):
                text = content.decode("utf-8-sig", errors="replace")
                self._exported[file] = self._module(text, file)[0].exported
            self._depth -= 1
        return self._exported[file]

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

    def _reader(self, name: str, given: Given | None = None) -> PythonReader:
        return PythonReader(name, self._tests(), self._strings, self._exports, given)

    def _tests(self) -> VersionTests:
        return VersionTests(self._history.releases, self._v0, self._asked)

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


def _reads_metrics(text: str) -> bool:
    """Return whether a module reads the metrics of a server."""
    is_scraper = "/metrics" in text and _GETS.search(text) is not None
    return is_scraper or "text_string_to_metric_families" in text


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
            if "." not in name or _READ.fullmatch(name) or is_dockerfile(name):
                count += 1
                if count > MAX_FILES:
                    raise UsageError(f"{root}: more than {MAX_FILES} files; give a part of it")
                yield os.path.relpath(os.path.join(folder, name), root)
