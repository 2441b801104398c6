"""The one place that prints: text, whatever it is given."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress import cli
from pytest_vllm_regress.cli.context import print_columns, print_json, say, warn
from pytest_vllm_regress.util.text import one_line, printable
from pytest_vllm_regress.util.validation import MAX_SHOWN, problems, shown
from tests.helpers import ROOT
from tests.helpers.cases import CaseFile

PACKAGE = ROOT / "pytest_vllm_regress"
STEERING = "\x1b]0;owned\x07\x9b31m\u2028\u2029\u200b\u200f\u202e\u2066\ufeff\x7f\x85\x00"
ANY = st.text(max_size=40) | st.text(alphabet=STEERING + "a \n|[]/", max_size=20)


def prints(path: Path) -> list[str]:
    """Every place that writes to the terminal itself."""
    return [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func)
        in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc")
    ]


def test_there_is_one_place_that_prints() -> None:
    """And the table, which writes a line break before it, and engines outside pytest, which have no command to print for them."""
    found = [
        each for path in PACKAGE.rglob("*.py") if not {"target_site", "data"} & set(path.parts) for each in prints(path)
    ]
    assert {each.partition(":")[0] for each in found} == {"context.py", "standalone.py", "table.py"}
    assert sum(each.startswith("table.py") for each in found) == 1


@given(ANY)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_nothing_that_is_said_steers_the_terminal(capsys: pytest.CaptureFixture[str], text: str) -> None:
    say(text)
    warn(text)
    print_columns(("a", "b"), [(text, "x")])
    print_json({text: text})
    captured = capsys.readouterr()
    for out in (captured.out, captured.err):
        assert all(character.isprintable() or character == "\n" for character in out)
    assert one_line(text).isprintable()
    assert "".join(each for each in printable(text) if each.isprintable()) == printable(text).replace("\n", "")
    assert shown(text).isprintable() and len(shown(text)) <= MAX_SHOWN


def case_saying(title: str, text: str) -> str:
    """Of a case that says ``text`` wherever a text of several lines may stand; texts as TOML writes them."""
    said = CaseFile(
        title="TITLE",
        pattern="TEXT",
        omits="TEXT",
        control='dtype = "TEXT"',
        keys='workaround = "TEXT"\nnotes = "TEXT"',
    )
    return said.text().replace("TITLE", title).replace("TEXT", text)


@pytest.mark.parametrize("character", sorted({each for each in STEERING if not each.isprintable()}), ids=ascii)
def test_no_field_of_a_case_steers_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], character: str
) -> None:
    folder = tmp_path / "cases" / "demo"
    folder.mkdir(parents=True)
    escaped = f"a\\u{ord(character):04x}b"
    (folder / "case.toml").write_text(case_saying("fine", escaped))
    (tmp_path / "vllm.txt").write_text("vllm==0.8.4\n")
    for arguments in (
        ["list"],
        ["show", "demo"],
        ["audit", str(tmp_path / "vllm.txt")],
        ["audit", str(tmp_path / "vllm.txt"), "--sarif"],
        ["show", "none"],
    ):
        status = cli.main(["--cases", str(tmp_path / "cases"), *arguments])
        captured = capsys.readouterr()
        assert status in (0, 1, 2)
        assert character not in captured.out + captured.err
    (folder / "case.toml").write_text(case_saying(escaped, "fine"))
    assert cli.main(["--cases", str(tmp_path / "cases"), "list"]) == 2
    captured = capsys.readouterr()
    assert character not in captured.out + captured.err


def test_an_error_holds_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "password=hunter2")]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_a_name_that_is_too_long_is_no_internal_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    for arguments in (
        ["--cases", long, "list"],
        ["report", long],
        ["audit", long],
        ["replay", long],
        ["show", long],
        ["env", "path", long],
    ):
        assert cli.main(arguments) == 2, arguments
    assert "internal error" not in capsys.readouterr().err


def test_faults_are_counted_while_they_are_made() -> None:
    """4 MB of them made 1.65 GB of words."""
    many = {
        "schema": 1,
        "tool_version": "1",
        "results": [{"a": [1] * 100}] * 20_000,
        **{f"key {n}": n for n in range(20_000)},
    }
    found = problems(many, "result_schema.json")
    assert len(found) <= 21 and all(len(line) < 1000 for line in found)
    assert problems({"requirements": ["a", 1] * 5}, "environments_schema.json")


@pytest.mark.parametrize(
    "value", [["x" * 10**7], {"a" * 10**7: [1] * 10**6}, [[[[[["deep"]]]]]], 1.5, None, "é\u2028" * 10**6]
)
def test_a_value_is_shown_in_few_characters(value: object) -> None:
    assert len(shown(value)) <= MAX_SHOWN
    assert re.fullmatch(r"[\x20-\x7e\xa1-\uffff]*", shown(value))


def test_json_hides_secrets_and_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hf_" + "a1B2c3D4e5" * 3
    print_json({"said": [f'token "{secret}"', (secret, 1, None)], secret: True})
    printed = capsys.readouterr().out
    assert secret not in printed
    found = json.loads(printed)
    assert len(found) == 2 and found["said"][1][1:] == [1, None]
