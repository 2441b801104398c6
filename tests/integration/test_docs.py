"""The documentation says what the code does: generated parts are as the code gives them, commands exist, links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from pytest_vllm_regress import cli
from pytest_vllm_regress.cases import proof
from pytest_vllm_regress.cases.model import find_cases
from pytest_vllm_regress.environments.sources import PROJECTS
from tests.helpers import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def commands(page: Path) -> list[str]:
    """Every line of a shell example that calls vllm-regress."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.partition("vllm-regress")[2] for line in lines if re.match(r"(\S*/)?vllm-regress ", line)]


@pytest.mark.parametrize(
    ("script", "name"), [("reference", "reference"), ("verdicts", "verdicts"), ("bisections", "bisect")]
)
def test_what_is_generated_is_as_the_code_gives_it(script: str, name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert builder(f"build_{script}").built(page) == page, f"run `python docs/build_{script}.py`"


def test_commits_that_were_found_are_those_that_cases_name() -> None:
    cases = {case.id: case for case in find_cases(ROOT / "cases")}
    found = builder("build_bisections").recorded()
    assert found
    for each in found:
        case = cases[each["case"]]
        assert each["changes"], case.id
        for change in each["changes"]:
            named = case.fixed_by if change["kind"] == "fix" else case.broken_by
            address = f"{PROJECTS[each['package']].repository}/commit/{change['commit']}"
            assert change["confirmed"], case.id
            assert proof.names_commit(named, change["pull_request"] or address, change["commit"]), (case.id, named)


def test_verdicts_by_version_contradict_no_proof() -> None:
    recorded, shown = (getattr(builder("build_verdicts"), name)() for name in ("recorded", "shown"))
    for case in find_cases(ROOT / "cases"):
        assert shown[case.id], f"{case.id}: no verdict in docs/verdicts.md"
        for each in proof.read(case.directory / proof.FILE).environments:
            assert recorded.get(case.id, {}).get(each.environment, each.verdict) == each.verdict, (case.id, each)


def builder(name: str) -> Any:
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as as_a_script:
        as_a_script.syspath_prepend(ROOT / "docs")
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("command", sorted({command for page in PAGES for command in commands(page)}))
def test_every_command_of_the_documentation_exists(command: str) -> None:
    """It is parsed, not run: a name, an option or a value that does not exist is an error."""
    group: Any = typer.main.get_command(cli.app)
    arguments = shlex.split(command, comments=True)
    if arguments[0] == "--cases":
        del arguments[:2]
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    parent = typer.Context(group)
    while hasattr(group, "get_command"):
        name = arguments.pop(0)
        found = group.get_command(parent, name)
        assert found is not None, f"no command {name}"
        parent, group = typer.Context(found, parent=parent, info_name=name), found
    group.make_context(name, arguments, parent=parent)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_no_result_of_a_gpu_without_a_record() -> None:
    """Where a GPU's record is committed the pages must say so, and as long as there is none they say that."""
    records = ROOT / "docs" / "records"
    conformance = json.loads((records / "conformance.json").read_text())
    on_gpus = [each for each in conformance if each["device"] == "gpu"]
    assert all(each["gpu"] for each in on_gpus)
    shown = bool(on_gpus) or any(records.glob("gpu*.json"))
    said = {"README.md": "no run on a GPU is recorded yet", "docs/devices.md": "No release was run on a GPU yet"}
    assert {page: words in (ROOT / page).read_text() for page, words in said.items()} == dict.fromkeys(said, not shown)
