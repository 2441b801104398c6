"""For which releases a project loads its own modules: some are imported only after a test of the
version, from another file."""

from __future__ import annotations

import ast
import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from ..api_history.definitions import absolute, last_name, module_name, text_of
from .blocks import Function, functions_in
from .scope import Paths, Releases

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){1,12}")
_MAIN = re.compile(r"""^if __name__ == ['"]__main__['"]""", re.MULTILINE)
_FOR_RELEASE = re.compile(r"vllm\w*_\d+_\d+")
_VERSION_IN_PATH = re.compile(r"(?:^|[/_-]|vllm)v?(\d[._]\d+(?:[._]\d+)?)(?=[/_.-]|$)")
_FULL_VERSION = re.compile(r"(?:^|[/_-])v\d[._]\d+[._]\d+/")
_RELEASE_IN_PATH = re.compile(
    r"(?i)vllm[_-]?v?0[._]?\d{1,2}(?![\da-z])|(?:^|[/_-])v0[._]?\d{1,2}[._]?\d(?!\d)"
)
Given = Mapping[tuple[str, int | str], Paths]
"""What functions are called with, by name, and position or name of the parameter."""
MAX_IMPORTS = 200_000
"""Limit of the pairs of an import and a file that it may load."""


@dataclass(frozen=True)
class Import:
    """An import of a module that is not vLLM's, or a string that names one.

    ``live``: for which releases the code gets there; ``perhaps``: see ``Use``.
    """

    name: str
    live: Releases
    perhaps: str = ""


@dataclass(frozen=True)
class Replaced:
    """Something of vLLM that the project assigns: ``vllm.utils.f = own``.

    ``value``: the name of what it assigns; empty for another value, which may wrap what was there.
    ``kept``: its file still has what was there, under another name. ``module``: the project makes a
    module.
    """

    path: str
    file: str
    line: int
    live: Releases
    value: str = ""
    kept: bool = False
    module: bool = False


class ChosenFunction:
    """A function of a module, and for which releases the module mentions it outside of the
    function. One in another function is only known in that, ``within``."""

    def __init__(self, node: Function, within: Function | None = None) -> None:
        self._first, self._last = node.lineno, node.end_lineno or node.lineno
        self._within = ChosenFunction(within) if within else None
        self.live: Releases = frozenset()
        self.is_mentioned = False
        self.perhaps = ""

    def mention(self, line: int, live: Releases, perhaps: str) -> None:
        if line not in self and (self._within is None or line in self._within):
            self.perhaps = perhaps and (self.perhaps if self.is_mentioned else perhaps)
            self.is_mentioned = True
            self.live |= live

    def __contains__(self, line: int) -> bool:
        return self._first <= line <= self._last


@dataclass
class OwnModule:
    """What a module of the project says about the project.

    ``functions``: by name, methods with a dot in front, and those in functions. ``imports``: of other modules than vLLM's.
    ``called``: attributes that the code takes from other objects than its own instance.
    ``passing``: functions that take any keywords, and classes that inherit from vLLM's.
    ``arguments``: options of its own parsers; ``has_parser``: one of these takes vLLM's, too.
    """

    functions: dict[str, list[ChosenFunction]] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    passing: set[str] = field(default_factory=set)
    arguments: set[str] = field(default_factory=set)
    has_parser: bool = False
    _given: dict[tuple[str, int | str], set[Paths]] = field(default_factory=dict)

    @property
    def given(self) -> Given:
        """What of vLLM the module gives to its functions, wherever it calls them."""
        return {
            key: next(iter(kinds))
            for key, kinds in self._given.items()
            if len(kinds) == 1 and any(kinds)
        }

    def note_parser(self, call: ast.Call) -> None:
        """Note the options that a call adds to a parser."""
        name = last_name(call.func)
        self.has_parser |= name in ("make_arg_parser", "add_cli_args")
        if name == "add_argument":
            self.arguments |= {
                t.replace("_", "-") for t in map(text_of, call.args) if t[:2] == "--"
            }

    def give(self, function: str, parameter: int | str, paths: Paths) -> None:
        if function in self.functions:
            self._given.setdefault((function, parameter), set()).add(paths)

    def define(self, tree: ast.Module, nodes: Iterable[ast.AST]) -> None:
        """Note the functions at the top, the private methods of the classes there, and functions in
        functions. ``nodes``: all of the module."""
        functions: dict[str, list[ChosenFunction]] = defaultdict(list)
        for node in tree.body:
            if isinstance(node, Function):
                functions[node.name].append(ChosenFunction(node))
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, Function) and re.match("_(?!_)", method.name):
                    functions[f".{method.name}"].append(ChosenFunction(method))
        for around in nodes:
            if isinstance(around, Function):
                for inner in functions_in(around):
                    functions[inner.name].append(ChosenFunction(inner, around))
        self.functions = dict(functions)

    def mention(self, name: str, line: int, live: Releases, perhaps: str) -> None:
        for function in self.functions.get(name, ()):
            function.mention(line, live, perhaps)


def imports_of(
    node: ast.Import | ast.ImportFrom, file: str, live: Releases, perhaps: str
) -> Iterator[Import]:
    """Yield the modules that a statement may import:

    ``from a import b`` may mean the module ``a.b``.
    """
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, live, perhaps) for alias in node.names)
        return
    base = absolute(module_name(file), file.endswith("__init__.py"), node.level, node.module)
    yield from (Import(f"{base}.{alias.name}", live, perhaps) for alias in node.names)


def named_in(text: str, file: str, live: Releases, perhaps: str) -> Iterator[Import]:
    """Yield the module that a string names, as in ``import_module("project.vllm_0_8_4.worker")``, or
    ``import_module(".worker", package=__package__)``."""
    if len(text) > 300:
        return
    if "vllm" in text and _DOTTED.fullmatch(text):
        yield Import(text, live, perhaps)
    elif text[:1] == "." and _DOTTED.fullmatch(f"x{text}"):
        package = module_name(file).rpartition(".")[0]
        yield Import(f"{package}{text}".lstrip("."), live, perhaps)


def names_release(file: str) -> bool:
    """Return whether the path of a file has a release, also without dots: ``vllm_085.py``."""
    return _RELEASE_IN_PATH.search(file) is not None


def is_program(text: str) -> bool:
    """Return whether a file can be started as a program."""
    return _MAIN.search(text) is not None


def named_for(
    imports: Mapping[str, Sequence[Import]],
    programs: Collection[str],
    chosen: Callable[[Sequence[str]], Sequence[Releases]],
) -> dict[str, Releases]:
    """Return for which releases the files are that no import names, but for those of the same
    release, and whose path has a version: their names are put together at run time, or nothing
    loads them any more. ``chosen`` returns for which releases each of several versions is."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    group_of: dict[str, tuple[str, str]] = {}
    for file in imports:
        is_of_vllm = "vllm" in file.lower() or _FULL_VERSION.search(file)
        if is_of_vllm and (version := _VERSION_IN_PATH.search(file)):
            group_of[file] = file[: version.start(1)], version[1].replace("_", ".")
            groups[group_of[file][0]][group_of[file][1]].append(file)
    loads = (_loads(imports) or {}) if groups else {}
    imported = {file for statements in loads.values() for file, _ in statements}
    entered = {
        group_of.get(file)
        for importer, statements in loads.items()
        for file, _ in statements
        if group_of.get(importer) != group_of.get(file)
    }
    return {
        file: live
        for versions in groups.values()
        for files, live in zip(versions.values(), chosen(list(versions)), strict=False)
        for file in files
        if file not in programs
        and (file not in imported or group_of[file] not in entered or "." in _folder(file))
    }


def loaded_for(
    imports: Mapping[str, Sequence[Import]], programs: Iterable[str], releases: Releases
) -> dict[str, Releases]:
    """Return for which releases each file is loaded; files that are loaded for all of them are left
    out.

    A file that nothing imports counts as what is beside it, if their folder is for some releases,
    such as ``vllm_0_8_4``.
    ``imports`` has the imports of every Python file that mentions vLLM. Only files with "vllm" in
    their path can be restricted: who imports those mentions vLLM, too, so that no import of them is
    overlooked.
    """
    loads = _loads(imports)
    if loads is None:
        return {}
    imported = {file for statements in loads.values() for file, _ in statements}
    folders = set(map(_folder, imported))
    unused = {
        file
        for file in imports.keys() - imported
        if _FOR_RELEASE.search(_folder(file)) and _folder(file) in folders
    }
    restricted = {file for file in imported | unused if "vllm" in file.lower()} - set(programs)
    loaded = {file: frozenset() if file in restricted else releases for file in imports}
    # Packages whose modules import each other may be loaded by an entry point.
    reached = _reached(imports.keys() - restricted, loads)
    packages = {file for file in restricted - reached if file.endswith("__init__.py")}
    loaded |= dict.fromkeys(packages, releases)
    reached = _reached((imports.keys() - restricted) | packages, loads)
    todo = deque(imports)
    while todo:
        importer = todo.popleft()
        for file, live in loads.get(importer, ()):
            if not (added := loaded[importer] & live) <= loaded[file]:
                loaded[file] |= added
                todo.append(file)
    beside: dict[str, Releases] = defaultdict(frozenset)
    for file in imported:
        beside[_folder(file)] |= loaded[file]
    loaded |= {file: beside[_folder(file)] for file in unused & restricted}
    # Files that only import each other are loaded in a way that is not known.
    return {
        file: live
        for file, live in loaded.items()
        if live != releases and (live or file in reached or file in unused)
    }


def doubted_in(imports: Mapping[str, Sequence[Import]]) -> dict[str, str]:
    """Return the files that are only imported behind tests that are not understood, with what
    these ask for."""
    doubts = [entry.perhaps for entries in imports.values() for entry in entries if entry.perhaps]
    if not doubts:
        return {}
    sure = {f: [entry for entry in entries if not entry.perhaps] for f, entries in imports.items()}
    every, certain = (
        {file for files in (_loads(some) or {}).values() for file, _ in files}
        for some in (imports, sure)
    )
    return dict.fromkeys(every - certain, doubts[0])


def _reached(files: Iterable[str], loads: Mapping[str, Sequence[tuple[str, Releases]]]) -> set[str]:
    """Return the files that are loaded by ``files`` for whatever release."""
    reached: set[str] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file not in reached:
            reached.add(file)
            todo += [other for other, _ in loads.get(file, ())]
    return reached


def _folder(file: str) -> str:
    return file.rpartition("/")[0]


def chosen_functions(
    functions: Mapping[str, Mapping[str, Sequence[ChosenFunction]]],
    imports: Mapping[str, Sequence[Import]],
    releases: Releases,
    imported_elsewhere: Collection[str] = (),
) -> dict[str, list[ChosenFunction]]:
    """Return by file the functions that the file uses for some releases only, or perhaps, and that
    no other file imports. ``imports`` lacks files that do not mention vLLM: ``imported_elsewhere`` are the
    names that those import."""
    imported = set(imported_elsewhere) | {
        statement.name.rpartition(".")[2]
        for statements in imports.values()
        for statement in statements
    }
    return {
        file: [
            function
            for name, same in named.items()
            for function in same
            if function.is_mentioned
            and (function.live != releases or function.perhaps)
            and name not in imported
        ]
        for file, named in functions.items()
    }


def _loads(imports: Mapping[str, Sequence[Import]]) -> dict[str, list[tuple[str, Releases]]] | None:
    """Return which other files each file loads; None above the limit."""
    files: dict[str, list[str]] = defaultdict(list)
    for file in imports:  # the path below any folder may be its name
        parts = module_name(file).split(".")
        for start in range(max(len(parts) - 1, 1)):
            files[".".join(parts[start:])].append(file)
    loads: dict[str, list[tuple[str, Releases]]] = defaultdict(list)
    count = 0
    for importer, statements in imports.items():
        for statement in dict.fromkeys(statements):
            # A module is loaded with its parents. The last part may be something inside of it.
            for name in accumulate(statement.name.split("."), "{}.{}".format):
                count += len(files.get(name, ()))
                if count > MAX_IMPORTS:
                    return None
                loads[importer] += [
                    (file, statement.live) for file in files.get(name, ()) if file != importer
                ]
    return loads
