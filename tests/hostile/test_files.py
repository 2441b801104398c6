"""Files from elsewhere are read or rejected with a message of bounded length, whatever they
contain."""

from __future__ import annotations

import copy
import json
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.audit.audit import audit, to_sarif
from pytest_vllm_regress.answers.audit.matching import find, notes, relevant
from pytest_vllm_regress.answers.audit.package_lists import parse_list
from pytest_vllm_regress.cases.loading import load_case
from pytest_vllm_regress.cases.results import (
    RunResult,
    TestResult,
    mask_values,
    merge_results,
    read_results,
    write_results,
)
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.errors import CaseFileError, UsageError
from pytest_vllm_regress.fuzz.hunter import load as load_finding
from pytest_vllm_regress.output.formats import junit_xml, markdown_text
from pytest_vllm_regress.output.pages.run_page import page
from pytest_vllm_regress.output.table import lines
from pytest_vllm_regress.util.masking import mask
from tests.helpers import ROOT
from tests.helpers.cases import project_cases

CASES = project_cases()
CASE = tomllib.loads((ROOT / "cases" / "vllm-16140" / "case.toml").read_text())
MAX_MESSAGE = 20_000
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.just("x" * 5000)
    | st.just("\x1b[2J\n"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """Draw ``document`` with values replaced, removed or added anywhere."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        node = changed
        while isinstance(node, (dict, list)) and node:
            key = (
                draw(st.sampled_from(sorted(node)))
                if isinstance(node, dict)
                else draw(st.integers(0, len(node) - 1))
            )
            action = draw(st.sampled_from(["descend", "replace", "remove", "add"]))
            if action == "descend" and isinstance(node[key], (dict, list)):
                node = node[key]
                continue
            if action == "remove":
                del node[key]
            elif action == "add" and isinstance(node, dict):
                node[draw(st.text(max_size=10))] = draw(VALUES)
            else:
                node[key] = draw(VALUES)
            break
    return changed


def as_toml(value: Any) -> str:
    """Return a value as TOML. Its strings are those of JSON, except for surrogates."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {as_toml(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if value is None:
        return '""'
    return (
        repr(value).lower()
        if isinstance(value, (bool, float))
        else json.dumps(value, ensure_ascii=False)
    )


@given(mutated(CASE) | VALUES)
@same_folder
def test_a_case_file_is_loaded_or_rejected(tmp_path: Path, document: Any) -> None:
    file = tmp_path / "case.toml"
    text = (
        "\n".join(f"{json.dumps(key)} = {as_toml(value)}" for key, value in document.items())
        if isinstance(document, dict)
        else str(document)
    )
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        case = load_case(file)
    except CaseFileError as error:
        assert str(file) in str(error)
        assert len(str(error)) < MAX_MESSAGE
    else:
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", case.id)
        assert case.title.isprintable()
        assert all(url.startswith("https://") for url in case.upstream)
        for versions in ({}, {"vllm": "0.8.4", "ray": "2.43.0"}, {"vllm": "main"}):
            for variant in (None, *case.variants):
                assert case.is_affected(versions, variant).reason
        assert case.first_fixed() != ""


@given(st.binary(max_size=400))
@same_folder
def test_arbitrary_bytes_are_not_a_case_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "case.toml").write_bytes(content)
    with pytest.raises(CaseFileError):
        load_case(tmp_path / "case.toml")


TRAPS = [
    "<script>alert(1)</script>",
    "]]>",
    "\x1b[2J\x07",
    "\u202e",
    "javascript:alert(1)",
    "|`*_[x](y)",
    "a\r\n# b",
    "",
]
TEXTS = st.text(max_size=60) | st.sampled_from(TRAPS)
RESULTS = st.builds(
    TestResult,
    case_id=st.text(min_size=1, max_size=64),
    test=TEXTS,
    verdict=st.sampled_from(Verdict),
    reason=TEXTS | st.just("x" * 10_000),
    device=st.sampled_from(["sim", "cpu", "gpu", "unknown"]),
    environment=st.text(min_size=1, max_size=40)
    | st.sampled_from(["vllm-0.8.4", "/opt/x/bin/python"]),
    versions=st.dictionaries(TEXTS, TEXTS, max_size=3),
    started_at=st.floats(0, 1e10),
    duration_s=st.floats(0, 1e8),
    variant=st.none() | st.text(max_size=64) | st.just("://0@"),
    symptom=TEXTS,
    dossier=TEXTS,
    command=TEXTS,
    seed=st.none() | st.integers(),
    control=st.sampled_from(["", "passed", "failed"]),
    not_expected_because=TEXTS,
)
RUNS = st.builds(
    lambda results, problems: RunResult(tuple(results), tuple(problems)),
    st.lists(RESULTS, max_size=4),
    st.lists(TEXTS, max_size=2),
)


@given(RUNS)
@same_folder
def test_result_files_are_read_as_they_were_written(tmp_path: Path, run: RunResult) -> None:
    write_results(tmp_path / "run.json", run)
    again = read_results(tmp_path / "run.json")
    # Texts that look like secrets, as "://0@" does, are masked when they are read.
    assert again.to_json() == mask_values(run.to_json(), mask)
    assert again.as_expected == run.as_expected
    assert merge_results([again, again]).to_json() == merge_results([again]).to_json()


@given(st.data())
@same_folder
def test_a_damaged_result_file_is_read_or_rejected(tmp_path: Path, data: st.DataObject) -> None:
    good = RunResult(
        (TestResult("a", "t", Verdict.FIXED, "why", "sim", "e", {"vllm": "0.8.4"}),)
    ).to_json()
    document = data.draw(mutated(good) | VALUES)
    (tmp_path / "run.json").write_text(json.dumps(document))
    try:
        run = read_results(tmp_path / "run.json")
    except UsageError as error:
        assert str(tmp_path / "run.json") in str(error)
        assert len(str(error)) < MAX_MESSAGE
    else:
        run.to_json()
        page(run), markdown_text(run), junit_xml(run), lines(run)


@given(st.data())
@same_folder
def test_a_damaged_finding_is_read_or_rejected(tmp_path: Path, data: st.DataObject) -> None:
    good = json.loads(next((ROOT / "docs" / "findings").glob("*.json")).read_text())
    (tmp_path / "finding.json").write_text(json.dumps(data.draw(mutated(good) | VALUES)))
    try:
        finding = load_finding(tmp_path / "finding.json")
    except UsageError as error:
        assert str(tmp_path / "finding.json") in str(error)
        assert len(str(error)) < MAX_MESSAGE
    else:
        assert load_finding(finding.save(tmp_path)) == finding


@given(RUNS, st.integers(20, 200))
@settings(deadline=None)
def test_reports_escape_any_text(run: RunResult, width: int) -> None:
    html, markdown, junit = page(run, CASES), markdown_text(run), junit_xml(run)
    table = "\n".join(lines(run, width))
    parsed = ElementTree.fromstring(junit.encode("utf-8", "replace"))
    assert len(parsed.findall(".//testcase")) == len(run.results)
    assert "<script>alert" not in html
    assert not re.search(r"""(?:href|src)\s*=\s*["']?\s*javascript:""", html)
    outside_code = re.sub(r"(`+).*?\1", "", markdown)
    assert not re.search("<(?!br|/?details|/?summary)[a-zA-Z]", outside_code)
    for text in (html, markdown, table):
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x9b]", text)
    assert "\u202e" not in table


@given(
    st.binary(max_size=300)
    | st.text(alphabet='vlmray=0.8.4\n-#;[]{}":,<>\\ ', max_size=200).map(str.encode)
)
@example(b"[[package]]\nname = 1\nversion = 2\n")
@example(
    b'{"components": [{"name": 1, "version": [], "purl": {}, "externalRefs": [{"referenceType": "purl"}]}], "@graph": [1], "installed": [{}]}'
)
@example(
    b'{"default": {"vllm": {"version": 1}}, "packages": {"a": 1}, "install": [{"metadata": 1}]}'
)
@example(b"a @ file:///x.whl\nvllm @ https://[::1\n")
@settings(deadline=None)
def test_a_list_of_packages_is_parsed_or_rejected(content: bytes) -> None:
    try:
        inventory = parse_list(content, "list")
    except UsageError as error:
        assert len(str(error)) < MAX_MESSAGE
        return
    for package in inventory.packages:
        assert package.name.isascii() and package.version.isprintable()
    find(inventory, CASES), [*notes(inventory, CASES)], relevant(inventory, CASES)
    json.dumps(to_sarif([audit(inventory, CASES, None, ())]))


@given(st.lists(st.text(max_size=12).filter(lambda word: "\0" not in word), max_size=4))
@settings(deadline=None, max_examples=50)
def test_the_command_exits_with_0_or_2(words: list[str]) -> None:
    assert cli.main(["show", *words]) in (0, 2)
