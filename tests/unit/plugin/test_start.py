"""What pytest pays where the plugin is installed and not used."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pytest
before = set(sys.modules)
import pytest_vllm_regress.plugin, pytest_vllm_regress.plugin.fixtures
print(*sorted(set(sys.modules) - before))
"""
OURS = {
    "",
    "_version",
    "engines",
    "engines.settings",
    "errors",
    "plugin",
    "plugin.evidence",
    "plugin.fixtures",
    "plugin.options",
    "plugin.reporter",
    "plugin.stash",
    "util",
    "util.deadline",
    "util.owner",
    "util.sizes",
    "util.text",
}


def test_nothing_is_imported_before_a_test_asks_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    ours = {name.partition(".")[2] for name in loaded if name.partition(".")[0] == "pytest_vllm_regress"}
    assert ours <= OURS
    others = {name.partition(".")[0] for name in loaded} - {"pytest_vllm_regress"}
    assert others <= set(sys.stdlib_module_names), others - set(sys.stdlib_module_names)
