"""The cost of the plugin for a pytest run that does not use it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib.metadata, json, sys
import pytest

searched, distributions = [], importlib.metadata.distributions
importlib.metadata.distributions = lambda **wanted: searched.append(wanted) or distributions(**wanted)
pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", "-p", sys.argv[1]])
print(json.dumps({"modules": list(sys.modules), "searches": len(searched)}))
"""
OURS = {
    "",
    "defaults",
    "plugin",
    "plugin.fixtures",
    "plugin.options",
    "plugin.state",
}


@dataclasses.dataclass(frozen=True)
class Start:
    """The modules that a start of pytest imported, and how often it searched all installed
    distributions."""

    modules: frozenset[str]
    searches: int


def start(plugin: str, project: Path) -> Start:
    """Collect no tests, with this plugin and no other."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, plugin],
        cwd=project,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return Start(frozenset(report["modules"]), report["searches"])


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Start, Start]:
    """With our plugin, and with one that does nothing."""
    project = tmp_path_factory.mktemp("project")
    (project / "nothing.py").touch()
    return start("pytest_vllm_regress.plugin", project), start("nothing", project)


def test_nothing_is_imported_before_a_test_asks_for_it(starts: tuple[Start, Start]) -> None:
    with_plugin, without = starts
    loaded = with_plugin.modules - without.modules
    assert {
        name.partition(".")[2] for name in loaded if name.partition(".")[0] == "pytest_vllm_regress"
    } == OURS
    others = {name.partition(".")[0] for name in loaded} - {"pytest_vllm_regress"}
    assert others <= set(sys.stdlib_module_names), others - set(sys.stdlib_module_names)


def test_pytest_looks_through_what_is_installed_no_more_often(starts: tuple[Start, Start]) -> None:
    with_plugin, without = starts
    assert with_plugin.searches == without.searches > 0
