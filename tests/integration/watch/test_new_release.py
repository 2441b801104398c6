"""``vllm-regress watch`` on a made-up release of lm-format-enforcer: one failure is back, one is
fixed, and one stays fixed."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.boundaries import boundaries
from pytest_vllm_regress.answers.audit.verdict_table import read_table
from pytest_vllm_regress.cases.loading import load_all_cases
from tests.helpers.cases import CaseFile
from tests.helpers.package_index import package_index, rebuild_wheel

OLD, NEW = "0.11.3", "0.11.4"
BACK = ("            self.seen_decimal_point = True\n", "            pass\n")
"""A number may have two decimal points again."""
FIX = (
    "        return bool(self.parsed_string) and (self.parsed_string[-1].isdigit() or self.seen_whitespace_after_digits)\n",
    "        limit = self.root.context.model_class.maximum\n"
    "        return self.parsed_string[-1:].isdigit() and (limit is None or float(self.parsed_string) <= float(limit))\n",
)
"""A number may not exceed its maximum."""
PROBE = """
def accepts(schema, text):
    from lmformatenforcer import JsonSchemaParser

    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()
"""
TEST = """
import pytest


@pytest.mark.vllm_case("{id}")
def test_refused(vllm_probe, vllm_at_work):
    vllm_at_work("numbers are accepted", vllm_probe("accepts", schema={{"type": "number"}}, text="7.5"))
    assert not vllm_probe("accepts", schema={schema}, text="{text}"), "{text} was accepted"
"""


def write_case(folder: Path, name: str, affected: str, schema: str, text: str) -> None:
    CaseFile(
        name,
        affected={"lm-format-enforcer": affected},
        devices=("none",),
        pattern=f"{text} was accepted",
        old=(f"lm-format-enforcer-{OLD}",),
        new=() if affected.startswith(">") else (f"lm-format-enforcer-{OLD}",),
    ).write(
        folder,
        {
            f"test_{name}.py": TEST.format(id=name, schema=schema, text=text),
            "probe.py": PROBE,
        },
    )


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """An index with the made-up release."""
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, f"lm-format-enforcer=={OLD}"],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    (folder := tmp_path / "index").mkdir()
    rebuild_wheel(wheel, folder, NEW, {"lmformatenforcer/jsonschemaparser.py": [BACK, FIX]})
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    with package_index(folder, yesterday.strftime("%Y-%m-%dT%H:%M:%SZ")) as address:
        yield address


@pytest.mark.slow
def test_exactly_the_changed_cases_are_reported_and_corrected(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / "cases"
    write_case(cases, "points", ">=0.8,<0.10.3", '{"type": "number"}', "1.5.5")
    write_case(cases, "maximum", ">=0.10.3", '{"type": "number", "maximum": 10}', "15")
    write_case(cases, "letters", "<0.10.3", '{"type": "number"}', "x")
    for variable in ("PIP_EXTRA_INDEX_URL", "UV_INDEX"):
        monkeypatch.setenv(variable, index)
    monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    command = ["--cases", "cases", "watch", "--state", "state.jsonl"]
    assert cli.main([*command, "--format", "json"]) == 1, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert [look["release"] for look in found["looks"]] == [f"lm-format-enforcer {NEW}"]
    assert {change["case"]: change["verdict"] for change in found["changes"]} == {
        "maximum": "UNEXPECTEDLY_FIXED",
        "points": "REGRESSED",
    }
    changed = [
        line
        for line in found["diff"].splitlines()
        if line.startswith(("-", "+")) and line[1:3] not in ("--", "++")
    ]
    assert changed == [
        '-lm-format-enforcer = ">=0.10.3"',
        f'+lm-format-enforcer = ">=0.10.3,<{NEW}"',
        "-fixed = []",
        f'+fixed = ["lm-format-enforcer-{NEW}"]',
        '-lm-format-enforcer = ">=0.8,<0.10.3"',
        f'+lm-format-enforcer = ">=0.8,<0.10.3 || >={NEW}"',
    ]
    assert cli.main(command) == 0  # the same day
    assert "nothing to do" in capsys.readouterr().out
    assert cli.main([*command, "--write"]) == 1
    corrected = load_all_cases(cases)
    table = read_table(corrected)
    ends = {
        case.id: [end for end in boundaries(case, table) if NEW in (end.inside, end.outside)]
        for case in corrected
    }
    assert {case_id: [end.state for end in new] for case_id, new in ends.items()} == {
        "letters": [],
        "maximum": ["observed"],
        "points": ["observed"],
    }
    assert cli.main([*command, "--write"]) == 0
