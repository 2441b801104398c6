"""The one module that prints: any input is printed as harmless text."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases.results import ResultFile
from pytest_vllm_regress.cli.context import print_columns, print_json, say, warn
from pytest_vllm_regress.environments.recipes import EnvironmentsDocument
from pytest_vllm_regress.util.codec import json_schema
from pytest_vllm_regress.util.text import one_line, printable
from pytest_vllm_regress.util.validation import MAX_SHOWN, format_value, problems
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

PACKAGE = ROOT / "pytest_vllm_regress"
STEERING = "\x1b]0;owned\x07\x9b31m\u2028\u2029\u200b\u200f\u202e\u2066\ufeff\x7f\x85\x00"
ANY = st.text(max_size=40) | st.text(alphabet=STEERING + "a \n|[]/", max_size=20)


PRINTING = ("print", "echo", "write", "print_exc")


def prints(path: Path) -> list[str]:
    """Return every place that writes to the terminal directly."""
    return [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) in PRINTING
        and ast.unparse(node.func)
        in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc")
    ]


def test_there_is_one_place_that_prints() -> None:
    """Exceptions: the empty line before the table, and code that runs without a command: engines
    outside pytest, and forked processes."""
    calls = [
        call
        for path in PACKAGE.rglob("*.py")
        if not {"target_site", "data"} & set(path.parts)
        for call in prints(path)
    ]
    assert {call.partition(":")[0] for call in calls} == {
        "context.py",
        "fixtures.py",
        "standalone.py",
        "table.py",
    }
    assert sum(call.startswith("table.py") for call in calls) == 1


@given(ANY)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_output_contains_no_control_characters(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    say(text)
    warn(text)
    print_columns(("a", "b"), [(text, "x")])
    print_json({text: text})
    captured = capsys.readouterr()
    for out in (captured.out, captured.err):
        assert all(character.isprintable() or character == "\n" for character in out)
    assert one_line(text).isprintable()
    assert "".join(
        character for character in printable(text) if character.isprintable()
    ) == printable(text).replace("\n", "")
    assert format_value(text).isprintable() and len(format_value(text)) <= MAX_SHOWN


def case_saying(title: str, text: str) -> str:
    """Return a case file with ``text`` in every field that may have several lines.

    Texts are written as in TOML.
    """
    case_file = CaseFile(
        title="TITLE",
        pattern="TEXT",
        omits="TEXT",
        control='dtype = "TEXT"',
        keys='workaround = "TEXT"\nnotes = "TEXT"',
    )
    return case_file.text().replace("TITLE", title).replace("TEXT", text)


UNPRINTABLE = sorted({steering for steering in STEERING if not steering.isprintable()})


def escaped(character: str) -> str:
    """Return a character between two others as TOML has it."""
    return f"a\\u{ord(character):04x}b"


def test_fields_of_a_case_print_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cases" / "demo"
    folder.mkdir(parents=True)
    (folder / "case.toml").write_text(case_saying("fine", "".join(map(escaped, UNPRINTABLE))))
    (tmp_path / "vllm.txt").write_text("vllm==0.8.4\n")
    for arguments in (
        ["list"],
        ["show", "demo"],
        ["audit", str(tmp_path / "vllm.txt")],
        ["audit", str(tmp_path / "vllm.txt"), "--format", "sarif"],
        ["show", "none"],
    ):
        status = cli.main(["--cases", str(tmp_path / "cases"), *arguments])
        captured = capsys.readouterr()
        assert status in (0, 1, 2)
        assert not set(UNPRINTABLE) & set(captured.out + captured.err)


@pytest.mark.parametrize("character", UNPRINTABLE, ids=ascii)
def test_a_title_with_a_control_character_is_refused_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], character: str
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "case.toml").write_text(case_saying(escaped(character), "fine"))
    assert cli.main(["--cases", str(tmp_path), "list"]) == 2
    captured = capsys.readouterr()
    assert character not in captured.out + captured.err


def test_errors_contain_no_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "password=hunter2")]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_a_name_that_is_too_long_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x" * 300
    for arguments in (
        ["--cases", long, "list"],
        ["report", long],
        ["audit", long],
        ["fuzz", "replay", long],
        ["show", long],
        ["env", "path", long],
    ):
        assert cli.main(arguments) == 2, arguments
    assert "internal error" not in capsys.readouterr().err


def test_the_number_of_validation_problems_is_limited() -> None:
    """Regression: 4 MB of problems produced 1.65 GB of text."""
    many = {
        "schema": 1,
        "tool_version": "1",
        "results": [{"a": [1] * 100}] * 20_000,
        **{f"key {n}": n for n in range(20_000)},
    }
    reported = problems(many, json_schema(ResultFile))
    assert len(reported) <= 21 and all(len(line) < 1000 for line in reported)
    assert problems({"requirements": ["a", 1] * 5}, json_schema(EnvironmentsDocument))


@pytest.mark.parametrize(
    "value",
    [["x" * 10**7], {"a" * 10**7: [1] * 10**6}, [[[[[["deep"]]]]]], 1.5, None, "é\u2028" * 10**6],
)
def test_a_value_is_shown_in_few_characters(value: object) -> None:
    assert len(format_value(value)) <= MAX_SHOWN
    assert re.fullmatch(r"[\x20-\x7e\xa1-\uffff]*", format_value(value))


def regress(*arguments: str, redirect: str = "", **variables: str) -> tuple[int, bytes, str]:
    """Run the command in a shell and return its exit code, standard output and standard error."""
    command = f"{shlex.join([sys.executable, '-m', 'pytest_vllm_regress', *arguments])} {redirect}"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONIOENCODING", "PYTHONUTF8")
    }
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr.decode()


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "cp1252"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["cp1252", "ascii"],
)
def test_characters_that_the_stream_cannot_encode_are_escaped(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    log = tmp_path / "log"
    log.write_text(
        'Traceback (most recent call last):\n  File "vllm/engine.py", line 3, in f\nValueError: 没有\n',
        encoding="utf-8",
    )
    status, output, errors = regress("explain", str(log), **variables)
    assert (status, errors) == (5, "")
    assert rb"ValueError: \u6ca1\u6709" in output
    status, output, errors = regress("show", "没", **variables)
    assert (status, output) == (2, b"")
    assert "no such case: " in errors and errors.isascii()


FULL = (">/dev/full", 2, "vllm-regress: standard output: No space left on device\n")
BROKEN_PIPE = ("| true; exit ${PIPESTATUS[0]}", 141, "")


@pytest.mark.parametrize(
    ("redirect", "code", "message", "arguments"),
    [
        (*FULL, ["list"]),
        (*FULL, ["list", "--format", "json"]),
        (*FULL, ["--help"]),
        (
            ">&-",
            2,
            "vllm-regress: standard output is closed: redirect it to a file, or to /dev/null\n",
            ["--version"],
        ),
        (*BROKEN_PIPE, ["show", "vllm-17173"]),
        (*BROKEN_PIPE, ["list", "--format", "json"]),
        (*BROKEN_PIPE, ["--version"]),
        ("2>/dev/full >/dev/full", 2, "", ["--help"]),
    ],
)
def test_output_that_cannot_be_written_is_no_internal_error(
    arguments: list[str], redirect: str, code: int, message: str
) -> None:
    assert regress(*arguments, redirect=redirect) == (code, b"", message)


def test_closed_streams_that_are_not_needed(tmp_path: Path) -> None:
    status, output, _ = regress("list", "--format", "json", redirect="<&- 2>&-")
    assert status == 0
    assert json.loads(output)


def test_json_hides_secrets_and_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hf_" + "a1B2c3D4e5" * 3
    print_json({"said": [f'token "{secret}"', (secret, 1, None)], secret: True})
    printed = capsys.readouterr().out
    assert secret not in printed
    document = json.loads(printed)
    assert len(document) == 2 and document["said"][1][1:] == [1, None]
