"""The names that the package offers its users: there, cheap until used, and of use to a type
checker."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_vllm_regress
from pytest_vllm_regress.engines.engine import CompletionOutput, RequestOutput
from tests.helpers import ROOT

HEAVY = {"pytest", "httpx", "numpy", "hypothesis", "jsonschema", "psutil", "rich", "typer"}
USERS_TEST = "".join(
    block.partition("```")[0]
    for block in (ROOT / "docs" / "reference" / "python-names.md")
    .read_text()
    .split("```python\n")[1:]
)


def test_every_public_name_can_be_loaded() -> None:
    for name in pytest_vllm_regress.__all__:
        value = getattr(pytest_vllm_regress, name)
        assert getattr(value, "__name__", name) == name or not isinstance(value, type)
    assert dir(pytest_vllm_regress) == sorted(pytest_vllm_regress.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(pytest_vllm_regress.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    module_of = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is None
    }
    assert module_of == pytest_vllm_regress._MODULE_OF
    assert sorted(pytest_vllm_regress.__all__) == sorted(module_of)


def test_an_unknown_name_lists_the_public_names() -> None:
    with pytest.raises(
        AttributeError, match=r"no attribute 'Motor'; the public names are .*Engine"
    ):
        pytest_vllm_regress.Motor  # noqa: B018
    with pytest.raises(ImportError, match="Motor"):
        exec("from pytest_vllm_regress import Motor")


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import pytest_vllm_regress", set()),
        ("from pytest_vllm_regress import RemoteError, Unsupported", set()),
        ("from pytest_vllm_regress import EngineSpec", set()),
        ("from pytest_vllm_regress import Engine, Probe, Target", {"psutil"}),
    ],
)
def test_importing_costs_nothing_that_is_not_used(statement: str, allowed: set[str]) -> None:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert HEAVY & set(json.loads(output.stdout)) <= allowed


def test_a_users_test_file_is_checked_strictly(tmp_path: Path) -> None:
    """The example of the reference passes `mypy --strict`; one wrong word in it does not."""

    files = {
        "test_right.py": USERS_TEST,
        "test_wrong_key.py": USERS_TEST.replace('["token_ids"]', '["tokens"]'),
        "test_wrong_method.py": USERS_TEST.replace("streamed[-1]", "vllm_engine.chat([])[-1]"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(ROOT / ".mypy_cache"), *files],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "test_right.py" not in done.stdout and "(checked 3 source files)" in done.stdout
    assert re.search(
        r'^test_wrong_key.py:.* TypedDict "CompletionOutput" has no key "tokens"', done.stdout, re.M
    )
    assert re.search(r'^test_wrong_method.py:.* no attribute "chat"', done.stdout, re.M)


def test_results_have_the_keys_that_the_target_sends() -> None:
    sent = ast.parse(
        (ROOT / "pytest_vllm_regress/target_site/vllm_regress_target/hosts/engine.py").read_text()
    )
    function = next(
        node for node in sent.body if isinstance(node, ast.FunctionDef) and node.name == "_result"
    )
    whole, part = (node for node in ast.walk(function) if isinstance(node, ast.Dict))
    for node, shape in ((whole, RequestOutput), (part, CompletionOutput)):
        keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
        assert keys == set(shape.__annotations__)
