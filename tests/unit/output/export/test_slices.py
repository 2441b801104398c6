"""What is taken of a test module: what the function needs, and nothing of pytest."""

from __future__ import annotations

from pytest_vllm_regress.output.export.standalone import ModuleOfTests

SOURCE = """
from __future__ import annotations
import json
import os
import pytest
from pytest_vllm_regress import Server, png_url

pytestmark = pytest.mark.vllm_case("demo")
LIMIT = 3
UNUSED = 4

@pytest.fixture(autouse=True)
def ready(vllm_server: Server) -> None:
    assert vllm_server.get("/health")

def helper(number: int) -> str:
    return json.dumps(number + LIMIT)

@pytest.mark.parametrize("token", [1])
def test_one(vllm_server: Server, token: int) -> None:
    assert vllm_server.post("/x", {"a": helper(token)})

def test_other() -> None:
    png_url(1)
"""


def test_helpers_and_constants_come_along_and_decorators_do_not() -> None:
    used = ModuleOfTests(SOURCE).slice(["test_one"])
    assert "LIMIT = 3" in used.text and "def helper" in used.text
    assert "UNUSED" not in used.text and "pytest" not in used.text and "test_other" not in used.text
    assert used.imports == ("import json",)
    assert used.own == frozenset()
    assert used.attributes["vllm_server"] == {"post"}


def test_names_of_this_project_are_reported() -> None:
    assert ModuleOfTests(SOURCE).slice(["test_other"]).own == {"png_url"}


def test_fixtures_of_the_module_are_known_with_their_parameters() -> None:
    assert ModuleOfTests(SOURCE).fixtures() == {"ready": ("vllm_server",)}
    assert ModuleOfTests(SOURCE).slice(["ready"]).fixtures == {"ready": ("vllm_server",)}
