"""The probes of the project's cases use only names that the target's package offers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.helpers import ROOT

TARGET = "pytest_vllm_regress.target_site.vllm_regress_target"
PROBES = sorted((ROOT / "cases").glob("*/probe.py"))


def target_names(path: Path) -> set[str]:
    """Return the names of the target's package that a probe imports, and the attributes it takes of
    them: ``dialect.version``."""
    tree = ast.parse(path.read_text())
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "vllm_regress_target"
        ):
            prefix = (node.module or "").partition(".")[2]
            imported |= {
                a.asname or a.name: ".".join(filter(None, (prefix, a.name))) for a in node.names
            }
    attributes = {
        f"{imported[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in imported
    }
    return set(imported.values()) | attributes


@pytest.mark.parametrize("path", PROBES, ids=lambda path: path.parent.name)
def test_a_probe_uses_only_names_that_exist(path: Path) -> None:
    for name in target_names(path):
        module, value = TARGET, importlib.import_module(TARGET)
        for part in name.split("."):
            module = f"{module}.{part}"
            value = getattr(value, part, None) or importlib.import_module(module)


def test_attributes_of_imported_modules_are_found(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "def f():\n    from vllm_regress_target import dialect\n    return dialect.version()\n"
    )
    assert target_names(probe) == {"dialect", "dialect.version"}
