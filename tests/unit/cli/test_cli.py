"""The command: output, exit codes, and complete runs in simulated targets."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pytest_vllm_regress import __version__, cli
from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.results import RunResult, TestResult, write_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import BuildError, ChildDied
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

CASE = CaseFile(old=("AFFECTED",), new=("FIXED",))
PROBE = """
def count(n):
    import vllm
    return 1 if vllm.__version__ == "0.8.4" else n
"""
TEST = """
import pytest
pytestmark = pytest.mark.vllm_case("demo")
def test_demo(vllm_probe):
    got = vllm_probe("count", n=8)
    assert got == 8, f"expected 8, got {got}"
"""


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    return CASE.write(
        tmp_path / "cases", {"probe.py": PROBE, "test_demo.py": TEST}
    ).directory.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move the harness's cache away from the user's."""
    root = tmp_path / "cache"
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(root))
    return root


def regress(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_list_and_show(cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert regress("--cases", cases, "list") == 0
    assert capsys.readouterr().out.splitlines()[1].split("  ") == [
        "demo",
        "wrong-result-count",
        "vllm <0.8.5",
        "one result",
    ]
    assert regress("--cases", cases, "list", "--format", "json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["affected"] == {"vllm": "<0.8.5"}
    assert listed["first_fixed"] == "vllm 0.8.5"
    assert regress("--cases", cases, "show", "demo") == 0
    output = capsys.readouterr().out
    assert "evidence:     affected AFFECTED; fixed FIXED" in output
    assert "workaround" not in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "demi"], "no such case: 'demi'. Did you mean demo?"),
        (["run", "demi"], "no such case: 'demi'"),
        (["run", "--env", "/nowhere/python"], "--env /nowhere/python: no such interpreter"),
        (["run", "--env", "vllm"], "vllm"),
        (["run", "--device", "tpu"], "'tpu' is not one of"),
        (["run", "--on", "ray,gpus=many"], "--on 'ray,gpus=many': allowed is ADDRESS[,gpus=N]"),
        (["validate", "demo", "--all"], "--all proves every case: leave it out to prove demo only"),
        (["env", "build"], "name the environments to build"),
        (["env", "build", "vllm-0.8.4", "--all"], "or give --all"),
        (["report", "none.json"], "none.json: cannot be read"),
        (["new", "17173x"], "upstream '17173x': allowed are a number"),
        (["new", "1", "--kind", "hangs"], "symptom.kind = 'hangs': allowed"),
        (["new", "1", "--set", "control.=x"], "--set control.=x: allowed is FIELD=VALUE"),
        (
            ["new", "1", "--affected-env", "vllm-0.8.4", "--fixed-env", "vllm-0.8.4"],
            "vllm-0.8.4: both affected and fixed evidence",
        ),
        (
            ["matrix", "--env", ">=0.8", "--disk", "9GiB"],
            "--disk limits what --releases downloads",
        ),
        (["lisst"], "No such command"),
        (["list", "--jsonn"], "No such option"),
    ],
)
def test_bad_input_ends_with_2(
    cases: Path, cache: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert regress("--cases", cases, *arguments) == 2
    captured = capsys.readouterr()
    assert words in " ".join(captured.err.split())
    assert "Traceback" not in captured.err
    assert sorted(path.name for path in cases.iterdir()) == ["demo"]


def test_malformed_case_and_missing_directory(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cases / "demo" / "case.toml").write_text(dataclasses.replace(CASE, devices=("tpu",)).text())
    assert regress("--cases", cases, "list") == 2
    assert "case.toml: devices[0] = 'tpu': allowed: none, sim, cpu, gpu" in capsys.readouterr().err
    assert regress("--cases", cases / "none", "list") == 2
    assert "no such directory of cases" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BuildError("no solution"), 3),
        (ChildDied("gone", phase="start"), 4),
        (RuntimeError("bug"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    cases: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(root: Path) -> None:
        raise error

    monkeypatch.setattr("pytest_vllm_regress.cases.loading.load_valid_cases", fail)
    assert regress("--cases", cases, "list") == code


def test_help_names_the_exit_codes_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert regress("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "3 an environment could not be built" in text
    for command in ("list", "show", "run", "report", "new"):
        assert f" {command} " in text
    assert regress("--version") == 0
    assert capsys.readouterr().out == f"vllm-regress {__version__}\n"


def test_help_shows_the_commands_in_panels_in_the_order_of_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert regress("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    panels = [line.split()[1] for line in lines if line.startswith("╭─")]
    assert panels[1:] == list(dict.fromkeys(entry.panel for entry in cli.COMMANDS.values()))
    named = [line.split()[1] for line in lines if line.startswith("│ ")]
    assert [name for name in named if name in cli.COMMANDS] == list(cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_line_of_a_command_begins_its_own_help(name: str) -> None:
    line = cli.COMMANDS[name].line
    command = cli.LazyCommand(name).load()
    assert command.help.split("\n")[0].rstrip(".") == line
    for first in (
        line,
        *(c.help.split("\n")[0] for c in getattr(command, "commands", {}).values()),
    ):
        assert len(first) <= 60, first


def test_help_and_one_command_import_no_module_of_another_command() -> None:
    """``list`` is also the command here."""
    code = (
        "import sys; from pytest_vllm_regress import cli; assert cli.main(sys.argv[1:]) == 0;"
        "modules = {f'pytest_vllm_regress.cli.{cli.module_of(name)}' for name in cli.COMMANDS};"
        "print(*sorted(modules & set(sys.modules)), file=sys.stderr)"
    )
    for argument, imported in (("--help", ""), ("list", "pytest_vllm_regress.cli.list")):
        done = subprocess.run(
            [sys.executable, "-c", code, argument], check=True, capture_output=True, text=True
        )
        assert done.stderr.strip() == imported


def test_options_of_every_command_may_stand_anywhere(
    cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert regress("list", "--cases", cases) == 0
    assert "demo" in capsys.readouterr().out
    assert regress("show", "demo", f"--cases={cases}", "-vv") == 0
    assert "show demo" in capsys.readouterr().err
    # After -- they are those of pytest.
    assert regress("--cases", cases, "run", "none", "--", "--cases", "x", "-v") == 2
    assert "no such case" in capsys.readouterr().err


def test_list_is_light() -> None:
    code = (
        "import sys; from pytest_vllm_regress import cli; assert cli.main(['list']) == 0;"
        "heavy = {'vllm', 'torch', 'numpy', 'pytest', 'hypothesis', 'httpx', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    before = os.times()
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120, stdout=subprocess.DEVNULL
    )
    after = os.times()  # CPU and not the clock: a loaded machine is slow with everything
    used = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    assert used < 3, "it takes about 0.2 s on an idle machine"


def test_report_merges(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, verdict in (("a", Verdict.FIXED), ("b", Verdict.REGRESSED)):
        write_results(
            tmp_path / "in" / f"{name}.json",
            RunResult((TestResult("demo", "t", verdict, "why", "sim", name),)),
        )
    assert regress("report", tmp_path / "in" / "a.json") == 0
    assert "all as expected" in capsys.readouterr().out
    assert regress("report", tmp_path / "in") == 1
    assert "1 of 2 not as expected" in capsys.readouterr().out
    assert regress("report", "--format", "json", tmp_path / "in") == 1
    assert len(json.loads(capsys.readouterr().out)["results"]) == 2
    assert regress("report") == 2
    assert "no run is stored yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.json", "--out", "a.json"],
        ["a.json", "--out", "./a.json"],
        ["a.json", "--out", "link.json"],
        [".", "--out", "b.json"],
        ["a.json", "--out", "new.html", "--out", "new.html"],
        ["a.json", "--out", "new.json", "--out", "folder"],
        ["a.json", "--out", ""],
        ["a.json", "--out", "-"],
        ["a.json", "--out", "page.htm"],
        ["a.json", "--out", "new.html", "--out", "a.json/below.xml"],
    ],
    ids=" ".join,
)
def test_report_refuses_an_output_before_it_writes_anything(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        write_results(
            Path(name), RunResult((TestResult("demo", "t", Verdict.FIXED, "why", "sim", name),))
        )
    Path("link.json").symlink_to("a.json")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert regress("report", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vllm-regress: ") and captured.err.count("\n") == 1
    assert "PosixPath" not in captured.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_standard_output_of_report_is_one_document(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(
        Path("a.json"), RunResult((TestResult("demo", "t", Verdict.FIXED, "why", "sim", "e"),))
    )
    pages = ("--out", "page.html", "--out", "pages")
    assert regress("report", "a.json", "--format", "json", *pages) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["results"]) == 1
    assert captured.err == "page: page.html\npages: pages/index.html\n"
    assert regress("report", "a.json", "--format", "junit", *pages) == 0
    assert ElementTree.fromstring(capsys.readouterr().out).tag == "testsuites"
    assert not Path("-").exists()


def test_show_prints_one_variant_per_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = '[variants.old]\naffected = { vllm = "<0.8" }\nreason = "one; two"\n[variants.none]\naffected = false\n'
    dataclasses.replace(CASE, tables=tables).write(tmp_path)
    assert regress("--cases", tmp_path, "show", "demo") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("variant")]
    assert lines == [
        "variant:      old: affected vllm <0.8 (one; two)",
        "variant:      none: never affected",
    ]


def test_new_makes_a_valid_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = tmp_path / "cases"
    url = "https://github.com/noamgat/lm-format-enforcer/issues/124?x=1"
    control = ("--set", "control.tokenizer_pool_size=0", "--set", "control.executor=mp")
    arguments = (
        "--title",
        'a "title" \\ é',
        "--affected",
        "<0.10.6",
        "--affected-env",
        "vllm-0.5.4",
        "--kind",
        "hang",
    )
    assert regress("--cases", cases, "new", url, *arguments, *control) == 0
    assert regress("--cases", cases, "new", "17173") == 0
    assert regress("--cases", cases, "new", "Some_Org/x#7") == 2
    assert regress("--cases", cases, "new", "some-org/X.y#7") == 0
    assert [case.id for case in load_all_cases(cases)] == ["lmfe-124", "vllm-17173", "x-y-7"]
    case = load_all_cases(cases)[0]
    assert case.title == 'a "title" \\ é'
    assert dict(case.control.changes) == {"tokenizer_pool_size": 0, "executor": "mp"}
    assert str(case.affected[0]) == "lm-format-enforcer <0.10.6"
    for path in cases.glob("*/test_*.py"):
        compile(path.read_text(), path, "exec")
    capsys.readouterr()
    assert regress("--cases", cases, "new", "17173") == 2
    assert "exists already" in capsys.readouterr().err
    assert regress("--cases", cases, "new", "2", "--title", "a\x1bb") == 2
    assert "cases/vllm-2/case.toml" in capsys.readouterr().err
    assert not list(cases.glob(".new-*"))


def test_run_from_beginning_to_end_and_wrong_ranges_are_red(
    cases: Path,
    cache: Path,
    affected_target: Path,
    fixed_target: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = dataclasses.replace(CASE, old=("old",), new=("new",))
    case.write(cases)
    for name, affected in (("low", "<0.8.4"), ("high", "<0.8.6")):
        files = {"probe.py": PROBE, "test_it.py": TEST.replace('"demo"', f'"{name}"')}
        dataclasses.replace(case, id=name, affected=affected).write(cases, files)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    both = ("--env", affected_target, "--env", fixed_target)
    assert regress("--cases", cases, "run", "-v", *both, "--out", tmp_path / "out.json") == 1
    assert "    passed in phase probe: 1 replies\n" in capsys.readouterr().out
    found: dict[str, list[str]] = {}
    for result in json.loads((tmp_path / "out.json").read_text())["results"]:
        assert result["device"] == "sim"
        found.setdefault(result["case_id"], []).append(result["verdict"])
    assert found == {
        "demo": ["REPRODUCED", "FIXED"],
        "low": ["REGRESSED", "FIXED"],
        "high": ["REPRODUCED", "UNEXPECTEDLY_FIXED"],
    }
    assert len(list((cache / "results").glob("*.json"))) == 1
    assert sorted(path.name for path in cases.joinpath("demo").iterdir()) == [
        "case.toml",
        "probe.py",
        "test_demo.py",
    ]


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("import no_such_module\n", "reported nothing for this case. Its output ends with: "),
        (TEST + "\nimport os\nos._exit(0)\n", "ended with status 0 and wrote no report"),
        (
            TEST.replace("    got =", "    import os; os.kill(os.getpid(), 9)\n    got ="),
            "was ended by SIGKILL and wrote no report",
        ),
    ],
    ids=["not-collected", "exit-0-in-silence", "killed"],
)
def test_a_broken_test_is_never_green(
    cases: Path, cache: Path, fixed_target: Path, tmp_path: Path, test: str, words: str
) -> None:
    (cases / "demo" / "test_demo.py").write_text(test)
    assert (
        regress("--cases", cases, "run", "--env", fixed_target, "--out", tmp_path / "out.json") == 1
    )
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert result["verdict"] == "INCONCLUSIVE"
    assert words in result["reason"]


@pytest.mark.parametrize("command", ["run", "matrix"])
def test_arguments_after_two_hyphens_go_to_pytest(
    command: str, cases: Path, cache: Path, fixed_target: Path, tmp_path: Path
) -> None:
    arguments = (
        "--cases",
        cases,
        command,
        "--env",
        fixed_target,
        "--out",
        tmp_path / "out.json",
        "--",
        "-k",
        "nothing",
    )
    assert regress(*arguments) == 1
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert "found no test" in result["reason"]
