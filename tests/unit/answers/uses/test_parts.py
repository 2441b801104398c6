"""Parts of a project, notes beside the headline, advice, and limits of work."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.api_history.store import History
from pytest_vllm_regress.answers.uses.answer import LEAVE_OUT, answer
from pytest_vllm_regress.answers.uses.declared import declared_in
from pytest_vllm_regress.answers.uses.project import (
    MAX_SECONDS,
    ProjectReader,
    read_project,
)
from tests.unit.answers.api_history.releases import history_of
from tests.unit.answers.uses.projects import answer_for, missing, write

OLD = "from vllm.utils import get_port\n"


@pytest.mark.parametrize("file", ["tests/a.py", "pkg/test_a.py", "examples/a.py", "docs/conf/a.py"])
def test_tests_and_examples_are_answered_apart(
    tmp_path: Path, two_releases: History, file: str
) -> None:
    files = {"pkg/a.py": "from vllm import LLM\n", file: OLD}
    files["pyproject.toml"] = '[project]\nname = "x"\ndependencies = ["vllm>=1"]\n'
    result = answer_for(tmp_path, two_releases, files)
    assert result.complete == ("1.0", "2.0")
    assert result.complete_for(result.parts[1]) == ("1.0",)
    assert not result.broken


def test_a_project_of_examples_is_about_these(tmp_path: Path, two_releases: History) -> None:
    result = answer_for(tmp_path, two_releases, {"examples/a.py": OLD})
    assert (result.parts, result.complete) == (("examples",), ("1.0",))


@pytest.mark.parametrize(
    ("image", "part"),
    [
        ("vllm/vllm-openai:latest", "code"),
        ("registry.local/vllm/vllm-openai:v1", "code"),
        ("someone/vllm-openai:2", "manifests with another image"),
        ("acme/vllm-rocm:latest", "manifests with another image"),
    ],
)
def test_removed_options_are_found_whatever_the_image_is_called(
    tmp_path: Path, two_releases: History, image: str, part: str
) -> None:
    text = f"services:\n  a:\n    image: {image}\n    command: --model m --old-flag\n"
    result = answer_for(tmp_path, two_releases, {"compose.yaml": text})
    (problem,) = result.problems["2.0"]
    assert (problem.text, problem.use.part) == ("vllm serve has no --old-flag", part)


def test_removed_options_of_one_branch_of_a_script_are_found(
    tmp_path: Path, two_releases: History
) -> None:
    text = "if a; then\n  vllm serve m --kept\nelse\n  vllm serve m --kept --old-flag\nfi\n"
    result = answer_for(tmp_path, two_releases, {"run.sh": text})
    (problem,) = result.problems["2.0"]
    assert (problem.text, problem.use.place.line) == ("vllm serve has no --old-flag", 4)


def test_ignored_variables_and_metrics_do_not_narrow_the_headline(
    tmp_path: Path, two_releases: History
) -> None:
    text = "export VLLM_OLD=1\nvllm serve m --kept\ncurl localhost:8000/v1/old\n"
    result = answer_for(tmp_path, two_releases, {"run.sh": text})
    assert result.complete == ("1.0", "2.0")
    assert result.lacking(("environment",)) == {"VLLM_OLD": ("2.0",)}
    assert result.lacking(("route",)) == {"/v1/old": ("2.0",)}


@pytest.mark.parametrize(
    ("text", "is_vllm"),
    [
        ("def ask_vllm(u):\n    return get(f'{u}/v1/old')", True),
        ("# vllm\n\n\n\n\ndef ask(u):\n    return get(f'{u}/v1/old')", False),
        ("# vllm\n\n\n\n\ndef ask(u):\n    return get(f'http://localhost:8000/v1/old')", True),
        ("class VllmClient:\n    def ask(self, u):\n        return get(f'{u}/v1/old')", True),
        ("class VllmClient:\n    def ask_tgi(self, u):\n        return get(f'{u}/v1/old')", False),
        ("def f(u):\n    # sglang, as vllm does\n    return get(f'{u}/v1/old')", False),
        ("URL = 'http://vllm/v1/old'", True),
    ],
)
def test_a_route_needs_evidence_of_vllm(
    tmp_path: Path, two_releases: History, text: str, is_vllm: bool
) -> None:
    lacks = missing(answer_for(tmp_path, two_releases, {"client.py": text}))["2.0"]
    assert lacks == (["there is no route /v1/old"] if is_vllm else [])


@pytest.mark.parametrize(
    ("route", "other", "is_vllm"),
    [
        ("/wake_old", "", True),
        ("/v1/old", "", False),
        ("/wake_old", "\n\ndef sglang(): ...", False),
    ],
)
def test_for_a_route_of_several_words_the_whole_file_tells(
    tmp_path: Path, two_releases: History, route: str, other: str, is_vllm: bool
) -> None:
    text = f"def f(u):\n    return get(f'{{u}}{route}')\n\n\ndef is_vllm_ready(): ...{other}"
    lacks = missing(answer_for(tmp_path, two_releases, {"client.py": text}))["2.0"]
    assert lacks == ([f"there is no route {route}"] if is_vllm else [])


def test_routes_of_the_project_s_own_server_are_none_of_vllm(
    tmp_path: Path, two_releases: History
) -> None:
    files = {
        "server.py": "router = APIRouter()\n@router.post('/v1/old')\nasync def f(): ...\n",
        "vllm_client.py": "get(f'{u}/v1/old')  # vllm",
    }
    assert missing(answer_for(tmp_path, two_releases, files))["2.0"] == []


def test_a_test_without_vllm_makes_its_answers_itself(
    tmp_path: Path, two_releases: History
) -> None:
    fake = {"tests/test_a.py": "PAGE = 'vllm:old 1'"}
    assert missing(answer_for(tmp_path / "a", two_releases, fake))["2.0"] == []
    real = {"tests/test_a.py": "from vllm import LLM\nx = 'vllm:old'"}
    lacks = missing(answer_for(tmp_path / "b", two_releases, real))["2.0"]
    assert lacks == ["there is no metric vllm:old"]


@pytest.mark.parametrize(("start", "lacks"), [("subprocess.run", True), ("parsed", False)])
def test_a_test_that_starts_no_process_has_no_commands(
    tmp_path: Path, two_releases: History, start: str, lacks: bool
) -> None:
    text = f"{start}(['vllm', 'serve', 'm', '--old-flag'])\nPAGE = 'vllm:old 1'"
    found = missing(answer_for(tmp_path, two_releases, {"tests/test_a.py": text}))["2.0"]
    assert found == (
        ["vllm serve has no --old-flag", "there is no metric vllm:old"] if lacks else []
    )


MESSAGES = """
_A = "--gone is deprecated and will be removed in v3. It has no effect: it follows --kept."
_B = "--disable-noise is deprecated. Use --enable-noise instead."
_C = "--level low is deprecated and will be removed in v3."
parser.add_argument("--kept")
parser.add_argument("--level", choices=["low", "high"])
parser.add_argument("--gone")
parser.add_argument("--enable-noise")
"""


def test_only_what_a_message_is_about_will_be_removed(tmp_path: Path) -> None:
    history = history_of({"1": {"engine/arg_utils.py": MESSAGES}})
    for level, expected in (("high", ["--gone"]), ("low", ["--gone", "--level low"])):
        script = f"vllm serve m --kept --gone 1 --level {level}\n"
        result = answer_for(tmp_path, history, {"run.sh": script})
        assert [deprecation.use.name for deprecation in result.deprecated] == expected


def test_the_opposite_is_no_replacement(tmp_path: Path) -> None:
    before = MESSAGES + 'parser.add_argument("--disable-noise")\n'
    history = history_of(
        {"1": {"engine/arg_utils.py": before}, "2": {"engine/arg_utils.py": MESSAGES}}
    )
    result = answer_for(tmp_path, history, {"run.sh": "vllm serve m --disable-noise\n"})
    (problem,) = result.problems["2"]
    assert problem.instead == LEAVE_OUT
    assert str(problem) == f"run.sh:1: vllm serve has no --disable-noise ({LEAVE_OUT})"


def test_a_list_with_many_errors_is_read_in_time_proportional_to_its_size() -> None:
    text = "[options]\ninstall_requires =\n  vllm>=0.8\n" + "nonsense\n" * 150_000
    assert [declared.specifier for declared in declared_in(text, "setup.cfg")] == [">=0.8"]


@pytest.mark.parametrize(
    "source",
    ["x = (\n" + ' f"{a}{b}{c}{d}"\n' * 40_000 + ")", 'x = f"""\n' + "{a}\n" * 120_000 + '"""'],
    ids=["joined", "triple-quoted"],
)
def test_a_huge_f_string_is_left_out_or_read_within_the_limits(
    tmp_path: Path, two_releases: History, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Memory, because how long it takes depends on the machine.
    monkeypatch.setattr("pytest_vllm_regress.answers.uses.project.PARSE_MEMORY", 64 * 1024 * 1024)
    result = answer_for(tmp_path, two_releases, {"a.py": f"import vllm\n{source}", "b.py": OLD})
    assert missing(result)["2.0"] == ["the module vllm.utils has no get_port"]
    (note,) = result.project.notes
    assert note.startswith("left out: a.py: cannot be parsed within 5 s and 64 MiB")


def test_what_the_time_does_not_suffice_for_is_counted(
    tmp_path: Path, two_releases: History
) -> None:
    write(tmp_path, {"a.py": OLD, "b.py": OLD})
    reader = ProjectReader(two_releases, clock=itertools.count(0, MAX_SECONDS * 2 // 3).__next__)
    for name in ("a.py", "b.py"):
        reader.read(tmp_path, name)
    project = reader.project()
    assert {use.place.file for use in project.uses} == {"a.py"}
    assert project.notes == (
        f"left out: 1 files, after {MAX_SECONDS} s; give a part of the project",
    )
    assert answer(read_project(tmp_path, two_releases), two_releases).project.notes == ()
