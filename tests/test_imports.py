"""The shape of the package: no import cycle, nothing imports the plugin, target code stays within its means."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pytest_vllm_regress"
TARGET = PACKAGE / "target_site" / "vllm_regress_target"
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "data" not in p.parts)


def imports(path: Path) -> Iterator[str]:
    """Modules of this package that the file imports, lazily or not, but for TYPE_CHECKING blocks."""
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level + (path.name == "__init__.py")] if path.name != "__init__.py" else here[: len(here) - node.level]
            stem = [*base, *(node.module.split(".") if node.module else [])]
            names = [stem] if node.module else [[*stem, alias.name] for alias in node.names]
            yield from (".".join(name) for name in names)
        todo.extend(ast.iter_child_nodes(node))


def test_no_cycle_even_counting_lazy_imports() -> None:
    graph = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): set(imports(p)) for p in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_nothing_imports_the_plugin() -> None:
    assert not [p for p in MODULES if "pytest_vllm_regress.plugin" in imports(p)]


@pytest.mark.parametrize("path", sorted(TARGET.glob("*.py")), ids=lambda p: p.name)
def test_target_code_is_standard_library_and_python_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in tree.body:
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= set(sys.stdlib_module_names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names



@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.name)
def test_modules_have_one_role(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_children_are_never_trusted_with_pickle() -> None:
    controller = [p for p in MODULES if "target_site" not in p.parts]
    assert not [p for p in controller if "pickle" in p.read_text()]
