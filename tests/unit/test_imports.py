"""The structure of the package: import order without cycles, restrictions of target code."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

PACKAGE = ROOT / "pytest_vllm_regress"
TARGET = PACKAGE / "target_site" / "vllm_regress_target"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "data" not in p.parts)
OURS = [p for p in MODULES if "target_site" not in p.parts]
FLOORS = (
    "util",
    "environments",
    "engines",
    "cases",
    "runner",
    "answers",
    "history",
    "surveys",
    "output",
    "fuzz",
    "plugin",
    "cli",
)
"""The folders of the package in import order: each may import only folders before it."""
FOREIGN = {
    "connectors": {"vllm"},
    "sim": {"vllm", "torch", "numpy"},
    "grammars": {"numpy", "torch", "llguidance", "lmformatenforcer", "outlines_core", "xgrammar"},
}
GROUND = ("_version", "defaults", "errors", "schemas", "target_site")
"""What every folder may import: modules of the package's root, and folders beside it.

The root itself is for users: its table of names leads up.
"""


def name_of(path: Path, root: Path = PACKAGE) -> str:
    """The module's dotted name; of a package's ``__init__`` the package's."""
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def module_names(root: Path) -> frozenset[str]:
    """Return the dotted names of all modules of the package."""
    return frozenset(name_of(path, root) for path in root.rglob("*.py"))


@functools.cache
def imports(path: Path, root: Path = PACKAGE) -> frozenset[str]:
    """Modules of the package that the file imports: lazily too, for type checking too, and as names
    of their package (``from ..a import b``)."""
    package = root.name
    known = module_names(root)
    own_parts = name_of(path, root).split(".") + (
        ["__init__"] if path.name == "__init__.py" else []
    )
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            stem = ".".join(
                filter(
                    None,
                    [
                        *(own_parts[: len(own_parts) - node.level] if node.level else []),
                        node.module or "",
                    ],
                )
            )
            if stem.partition(".")[0] == package:
                names = {f"{stem}.{alias.name}" for alias in node.names}
                modules |= (names & known) | ({stem} if names - known else set())
    return frozenset(modules)


def cycle(graph: dict[str, frozenset[str]]) -> list[str]:
    """A cycle of imports, as the names on it; empty when there is none."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        done.add(name)
        return next(
            filter(None, (visit(other, (*path, name)) for other in sorted(graph.get(name, ())))), []
        )

    return next(filter(None, (visit(name, ()) for name in sorted(graph))), [])


def upwards(path: Path, root: Path = PACKAGE) -> list[str]:
    """Imports of a module that lead to a folder above its own, or out of the ground."""
    rank = {folder: number for number, folder in enumerate(FLOORS)}
    floor = rank.get(path.relative_to(root).parts[0], -1)
    parts = [
        (name, name.split(".")[1] if "." in name else "") for name in sorted(imports(path, root))
    ]
    return [
        f"{name_of(path, root)} -> {name}"
        for name, folder in parts
        if not folder or (folder not in GROUND and rank[folder] > floor)
    ]


def test_no_cycle_even_counting_lazy_imports() -> None:
    assert cycle({name_of(p): imports(p) - {name_of(p)} for p in MODULES}) == []


def test_no_module_imports_the_public_names() -> None:
    """Its names lead up into every folder: a module inside that took one from there would close a
    cycle."""
    inside = [p for p in MODULES if p != PACKAGE / "__init__.py"]
    assert [name_of(p) for p in inside if PACKAGE.name in imports(p)] == []


@pytest.mark.parametrize("path", [p for p in OURS if p.parent != PACKAGE], ids=name_of)
def test_folders_import_only_lower_folders(path: Path) -> None:
    assert upwards(path) == []


def test_every_folder_has_a_place_in_the_import_order() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()} - set(GROUND)
    assert folders == set(FLOORS)


TURNED_ROUND = (
    "from .. import Engine",
    "from ..cli import context",
    "from ..cli.context import say",
    "import sample.cli.context",
    "def lazily():\n    from .. import cli",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..cli.context import say",
)


@pytest.mark.parametrize("line", TURNED_ROUND)
def test_an_upward_import_is_detected(tmp_path: Path, line: str) -> None:
    root = tmp_path / "sample"
    for folder in ("util", "cli"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    (root / "__init__.py").touch()
    (root / "cli" / "context.py").write_text("from ..util import paths\n")
    (root / "util" / "paths.py").write_text(line + "\n")
    assert upwards(root / "cli" / "context.py", root) == []
    assert upwards(root / "util" / "paths.py", root)
    if line.endswith("context") or "from ..cli" in line:
        assert "sample.util.paths" in cycle(
            {name_of(p, root): imports(p, root) for p in root.rglob("*.py")}
        )


def test_nothing_imports_the_plugin() -> None:
    assert not [
        p for p in MODULES if "pytest_vllm_regress.plugin" in imports(p) and p.parent != PACKAGE
    ]


@pytest.mark.parametrize(
    "path",
    sorted(TARGET.rglob("*.py")),
    ids=lambda p: name_of(p).partition("vllm_regress_target")[2] or "root",
)
def test_target_code_is_standard_library_and_python_3_9(path: Path) -> None:
    """Only parts that vLLM itself loads (sim) and drivers of one backend (grammars) import that
    package and its dependencies."""
    allowed = set(sys.stdlib_module_names) | FOREIGN.get(path.parent.name, set())
    for node in ast.parse(path.read_text(), feature_version=(3, 9)).body:
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] in allowed


def test_children_are_never_trusted_with_pickle() -> None:
    """One module writes a tensor in that format, for vLLM to read; it reads none."""
    writer = PACKAGE / "engines" / "inputs" / "media.py"
    assert [p for p in OURS if "pickle" in p.read_text()] == [writer]
    assert not re.search(r"^\s*(import|from) _?pickle|\bloads?\(", writer.read_text(), re.MULTILINE)


def test_private_names_of_pytest_are_used_in_one_module() -> None:
    """The next release of pytest may remove its private names."""
    of_pytest = {
        name
        for kind in (pytest.Function, pytest.Config, pytest.Session, pytest.CallInfo)
        for name in dir(kind)
    }
    private = {
        name for name in of_pytest | {"_id"} if name.startswith("_") and not name.startswith("__")
    }

    def names(node: ast.AST) -> list[str]:
        if isinstance(node, ast.ImportFrom) and not node.level:
            return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        if isinstance(node, ast.Import):
            return [part for alias in node.names for part in alias.name.split(".")]
        of_self = (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        )
        return (
            [node.attr]
            if isinstance(node, ast.Attribute) and not of_self and node.attr in private
            else []
        )

    using = {
        path.stem
        for path in (PACKAGE / "plugin").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if any(name.startswith("_") and not name.startswith("__") for name in names(node))
    }
    assert using == {"state"}
