"""The whole API of one release, from the files of its wheel."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_vllm_regress.answers.api_history.definitions import module_name
from pytest_vllm_regress.answers.api_history.store import BRIEF

from . import service
from .modules import ROOT, Module, read_module

_LEFT_OUT = re.compile(r"vllm/(?:third_party|vllm_flash_attn|benchmarks)/.*")
"""Vendored packages, compiled kernels' wrappers and vLLM's own benchmarks."""
Symbols = dict[str, dict[str, str]]


@dataclass(frozen=True)
class ApiSnapshot:
    """``symbols``: definitions by module and qualified name. ``tables``: the sections by name."""

    symbols: Symbols
    tables: dict[str, dict[str, str]]


def read_snapshot(files: Mapping[str, bytes]) -> ApiSnapshot:
    """Return the API in the files of a wheel."""
    modules: dict[str, Module] = {}
    trees: dict[str, ast.Module] = {}
    for path, content in files.items():
        if re.fullmatch(rf"{ROOT}/.*\.py", path) and not _LEFT_OUT.fullmatch(path):
            tree = parse(content)
            modules[module_name(path)] = read_module(tree, path)
            if service.is_needed(path, content):  # the trees of all modules take gigabytes
                trees[path] = tree
    metadata = (content for path, content in files.items() if path.endswith("METADATA"))
    return _assembled(modules, trees, next(metadata, b""))


def parse(content: bytes) -> ast.Module:
    """Return the parsed source, an empty module if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def _assembled(modules: Mapping[str, Module], trees: service.Trees, metadata: bytes) -> ApiSnapshot:
    symbols = {name: _kept(name, module.symbols) for name, module in modules.items()}
    for name, module in modules.items():
        for source in module.stars:
            for symbol in public_names(modules, source, set()):
                symbols[name].setdefault(symbol, f"< {source}:{symbol}")
    tables = service.tables(trees) | {
        "modules": dict.fromkeys(with_packages(modules), ""),
        "requirements": service.requirements(metadata),
        "deprecations": {
            message: f"{name}:{owner}"
            for name, module in modules.items()
            for message, owner in module.deprecations.items()
        },
    }
    if f"{ROOT}.envs" in symbols:
        symbols[f"{ROOT}.envs"] |= dict.fromkeys(service.environment_variables(trees), "=")
    return ApiSnapshot(symbols, tables)


def with_packages(modules: Iterable[str]) -> set[str]:
    """Return the modules and the packages that they are in, some of which have no source of their
    own."""
    parts = [module.split(".") for module in modules]
    return {".".join(names[:count]) for names in parts for count in range(1, len(names) + 1)}


def public_names(modules: Mapping[str, Module], name: str, visited: set[str]) -> set[str]:
    """Return the names that ``from name import *`` brings."""
    if name not in modules or name in visited:
        return set()
    module = modules[name]
    own = {symbol for symbol in module.symbols if "." not in symbol and not symbol.startswith("_")}
    return own.union(*(public_names(modules, source, visited | {name}) for source in module.stars))


def _kept(name: str, symbols: dict[str, str]) -> dict[str, str]:
    if not BRIEF.fullmatch(name):
        return dict(symbols)
    return {
        symbol: definition
        for symbol, definition in symbols.items()
        if definition[0] not in (".=" if "." not in symbol else ".")
        and ((last := symbol.rpartition(".")[2]) == "__init__" or not last.startswith("_"))
    }
