"""Modules of a project that are loaded for some releases only, by the choice of another file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.own_modules import Import, loaded_for
from tests.unit.answers.api_history.releases import history_of
from tests.unit.answers.uses.projects import answer_for, missing

OLD = "from vllm.utils import get_port"
CHOICE = "import vllm\nfrom packaging.version import Version\nif Version(vllm.__version__) < Version('2.0'):\n    {}"
GONE = ["the module vllm.utils has no get_port"]


@pytest.mark.parametrize(
    "statement",
    [
        "import app.vllm_1_0.worker",
        "from app.vllm_1_0 import worker",
        "from app.vllm_1_0.worker import get_port",
        "from .vllm_1_0.worker import get_port",
        "load('app.vllm_1_0.worker.get_port')",
    ],
)
@pytest.mark.parametrize("top", ["", "src/"])
def test_a_module_that_is_chosen_by_the_release_needs_only_that_release(
    tmp_path: Path, two_releases: History, statement: str, top: str
) -> None:
    files = {f"{top}app/__init__.py": CHOICE.format(statement), f"{top}app/vllm_1_0/worker.py": OLD}
    assert missing(answer_for(tmp_path, two_releases, files)) == {"1.0": [], "2.0": []}


@pytest.mark.parametrize(
    "others",
    [
        {"app/other.py": "from app.vllm_1_0 import worker"},
        {"app/vllm_2_0/__init__.py": "from ..vllm_1_0.worker import get_port"},
        {"app/other.py": "load('app.vllm_1_0.worker')"},
    ],
)
def test_a_module_that_anything_else_imports_needs_every_release(
    tmp_path: Path, two_releases: History, others: dict[str, str]
) -> None:
    files = {
        "app/__init__.py": CHOICE.format("import app.vllm_1_0.worker"),
        "app/vllm_1_0/worker.py": OLD,
        **others,
    }
    assert missing(answer_for(tmp_path, two_releases, files))["2.0"] == GONE


def test_a_program_and_a_module_without_vllm_in_its_path_need_every_release(
    tmp_path: Path, two_releases: History
) -> None:
    program = f"{OLD}\nif __name__ == '__main__':\n    get_port()"
    files = {
        "app/__init__.py": CHOICE.format("import app.vllm_1_0.worker"),
        "app/vllm_1_0/worker.py": program,
    }
    assert missing(answer_for(tmp_path / "program", two_releases, files))["2.0"] == GONE
    files = {"app/__init__.py": CHOICE.format("import app.old.worker"), "app/old/worker.py": OLD}
    assert missing(answer_for(tmp_path / "path", two_releases, files))["2.0"] == GONE


def test_a_module_that_nothing_imports_counts_as_its_folder_for_a_release(
    tmp_path: Path, two_releases: History
) -> None:
    files = {
        "app/__init__.py": CHOICE.format("import app.vllm_1_0.worker"),
        "app/vllm_1_0/worker.py": "import vllm",
    }
    for folder, lacking in (("vllm_1_0", []), ("vllm_other", GONE)):
        more = {f"app/{folder}/unused.py": OLD}
        assert (
            missing(answer_for(tmp_path / folder, two_releases, {**files, **more}))["2.0"]
            == lacking
        )


def test_a_module_passes_on_for_which_releases_it_is_loaded() -> None:
    first, both = frozenset({0}), frozenset({0, 1})
    imports = {
        "main.py": [Import("vllm_a.x", first)],
        "vllm_a/x.py": [Import("vllm_a.y", both)],
        "vllm_a/y.py": [Import("vllm_a.x", both), Import("vllm_a.z", frozenset({1}))],
        "vllm_a/z.py": [],
    }
    assert loaded_for(imports, (), both) == {
        "vllm_a/x.py": first,
        "vllm_a/y.py": first,
        "vllm_a/z.py": frozenset(),  # for no known release
    }


def test_more_imports_than_the_limit_restrict_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = {"main.py": [Import("vllm_a.x", frozenset({0}))], "vllm_a/x.py": []}
    assert loaded_for(imports, (), frozenset({0, 1}))
    monkeypatch.setattr("pytest_vllm_regress.answers.uses.own_modules.MAX_IMPORTS", 0)
    assert loaded_for(imports, (), frozenset({0, 1})) == {}


V0_AND_V1 = history_of(
    {
        "1.0": {
            "__init__.py": "",
            "envs.py": "environment_variables = {'VLLM_USE_V1': lambda: True}",
            "engine/llm_engine.py": "class LLMEngine: ...",
            "worker.py": "class Worker: ...",
        },
        "2.0": {
            "__init__.py": "",
            "envs.py": "environment_variables = {'VLLM_USE_V1': lambda: True}",
            "engine/llm_engine.py": "from vllm.v1 import LLMEngine as V1\nLLMEngine = V1",
            "v1.py": "class LLMEngine: ...",
        },
    }
)


@pytest.mark.parametrize(
    "test",
    [
        "from vllm import envs\nif envs.VLLM_USE_V1:\n    pass\nelse:",
        "import vllm.envs\nif not vllm.envs.VLLM_USE_V1:",
        "from vllm.envs import VLLM_USE_V1\nif not VLLM_USE_V1:",
        "import vllm.envs as envs\nis_v1 = envs.VLLM_USE_V1\nif not is_v1:",
        "from vllm import envs\nif hasattr(envs, 'VLLM_USE_V1') and not envs.VLLM_USE_V1:",
        "if VLLM_VERSION == 'V1':\n    pass\nelse:",
        "if self.engine_version != 'V1':",
    ],
)
def test_a_branch_for_the_v0_engine_needs_only_releases_with_it(tmp_path: Path, test: str) -> None:
    source = f"{test}\n    from vllm.worker import Worker"
    assert missing(answer_for(tmp_path, V0_AND_V1, {"a.py": source})) == {"1.0": [], "2.0": []}


def test_a_name_means_what_its_engine_has_in_the_branch_for_that(tmp_path: Path) -> None:
    files = {
        "outputs.py": "class Out:\n    def __init__(self, old): ...",
        "v1/outputs.py": "class Out:\n    def __init__(self, new): ...",
    }
    imports = (
        "if x:\n    from vllm.outputs import Out\nelse:\n    from vllm.v1.outputs import Out\n"
    )
    calls = "Out(new=1)\nelse:\n    Out(old=1)"
    both = "class Out:\n    def __init__(self, old=1, new=1): ..."
    history = history_of({"1.0": files, "2.0": dict.fromkeys(files, both)})
    for test, lacks in (
        ("VLLM_ENGINE == 'V1'", []),
        ("model == 'V1'", ["vllm.outputs.Out takes no new"]),
    ):
        result = missing(
            answer_for(tmp_path, history, {"a.py": f"{imports}if {test}:\n    {calls}"})
        )
        assert [text for text in result["1.0"] if "takes no" in text] == lacks


def test_a_branch_for_the_v1_engine_needs_every_release(tmp_path: Path) -> None:
    source = "from vllm import envs\nif envs.VLLM_USE_V1:\n    from vllm.worker import Worker"
    assert missing(answer_for(tmp_path, V0_AND_V1, {"a.py": source}))["2.0"] == [
        "the module vllm.worker does not exist"
    ]


VERSION_SPECIFIC = f"""
import vllm
from packaging.version import Version

def load_1_0():
    {OLD}

def load_2_0(): ...

if Version(vllm.__version__) < Version("2.0"):
    load = load_1_0
else:
    load = load_2_0
"""


def test_a_function_that_is_chosen_by_the_release_needs_only_that_release(
    tmp_path: Path, two_releases: History
) -> None:
    files = {"vllm_patch.py": VERSION_SPECIFIC}
    assert missing(answer_for(tmp_path, two_releases, files)) == {"1.0": [], "2.0": []}


@pytest.mark.parametrize(
    ("more", "other"),
    [("\nload_1_0()", ""), ("", "from vllm_patch import load_1_0")],
    ids=["called elsewhere", "imported elsewhere"],
)
def test_a_function_that_anything_else_uses_needs_every_release(
    tmp_path: Path, two_releases: History, more: str, other: str
) -> None:
    files = {"vllm_patch.py": VERSION_SPECIFIC + more, "other.py": other}
    assert missing(answer_for(tmp_path, two_releases, files))["2.0"] == GONE


def test_a_module_whose_name_a_function_returns_by_the_release_needs_only_that(
    tmp_path: Path, two_releases: History
) -> None:
    chooser = """
        import vllm
        def choose(installed):
            if installed[:1] == (1,):
                return ".old_worker", "run"
            raise ValueError
        module, name = choose(vllm.__version_tuple__)
        import_module(module, package=__package__)
        """
    files = {"app_vllm/choose.py": chooser, "app_vllm/old_worker.py": OLD}
    assert missing(answer_for(tmp_path, two_releases, files))["2.0"] == []
