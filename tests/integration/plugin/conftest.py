"""A project with one case, whose probe a test can script. The target is a real interpreter with an
empty "vllm".

Most tests run pytest in the process of the test (``pytester.runpytest_inprocess``): that takes a
third of the processor time. Tests about a process's imports, its signals, or the secrets that it
knows start a new one (``runpytest_subprocess``).
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pytest_vllm_regress
from tests.helpers.cases import CaseFile

DEMO = CaseFile(
    "demo-1",
    devices=("sim", "cpu", "gpu"),
    kind="exception",
    pattern="the documented words",
    omits="the trigger",
    old=("vllm-0.8.4",),
    new=("vllm-0.8.5",),
    tables="[variants.other]\naffected = false",
)
ONLY_IN_TARGETS = (
    "pytest_vllm_regress.target_site.",
    "pytest_vllm_regress.runner.ray_node",
    "pytest_vllm_regress.__main__",
)
PROBE = """
import os, time
from vllm_regress_target import Unsupported

def fine(): return 8
def one(): return 1
def raises(): raise ValueError("the documented words")
def raises_other(): raise KeyError("something else")
def hangs(): print("waiting for the documented words", flush=True); time.sleep(600)
def crashes(): print("the documented words", flush=True); os._exit(7)
def says(words): print(words, flush=True)
def gives(value): return value
def cannot_say(): raise Unsupported("not here")
def cannot(): raise Unsupported("this version has no such thing", since="0.9")
"""

TEST = """
import pytest

@pytest.mark.vllm_case("demo-1"{arguments})
def test_demo(vllm_probe, vllm_leg):
    function = {function!r} if vllm_leg == "subject" else {control!r}
    value = vllm_probe(function, timeout=1 if function == "hangs" else 60)
    assert value == 8, "the documented words: " + str(value)
"""

Demo = Callable[..., Path]


@pytest.fixture(autouse=True, scope="session")
def every_module_imported_once() -> None:
    """Import all modules before the first run. After a run in this process, pytester unloads the
    modules that the run imported. The next run would import second copies, with other stash keys
    and exception classes, and numpy cannot be imported twice at all.
    """
    import numpy  # noqa: F401

    for module in pkgutil.walk_packages(pytest_vllm_regress.__path__, "pytest_vllm_regress."):
        if not module.name.startswith(ONLY_IN_TARGETS):
            importlib.import_module(module.name)


@pytest.fixture
def demo(pytester: pytest.Pytester) -> Demo:
    """Writes the case:

    ``demo("raises", kind="hang")``; fields of the case file by name, ``test`` replaces the test
    file.
    """

    def write(
        function: str = "fine",
        *,
        control_function: str = "fine",
        arguments: str = "",
        test: str = TEST,
        **fields: Any,
    ) -> Path:
        pytester.makefile(".toml", case=dataclasses.replace(DEMO, **fields).text())
        pytester.makepyfile(
            probe=PROBE,
            test_demo=test.format(function=function, control=control_function, arguments=arguments),
        )
        return pytester.path

    return write
