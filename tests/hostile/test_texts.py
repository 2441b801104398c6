"""Hostile texts for every printer and hostile files for every reader: nothing steers, hides or links, no secret gets out, and it stays cheap."""

from __future__ import annotations

import io
import json
import os
import resource
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from pytest_vllm_regress import cli
from pytest_vllm_regress.audit.inventory import Inventory
from pytest_vllm_regress.audit.package_lists import read_list
from pytest_vllm_regress.audit.sarif import to_sarif
from pytest_vllm_regress.audit.target import audit, read_target
from pytest_vllm_regress.bisection.search import Notes
from pytest_vllm_regress.cases import proof, results
from pytest_vllm_regress.cases.model import find_cases, load_case
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.cli.context import say, warn
from pytest_vllm_regress.conformance.record import read_record
from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.installed import open_environment
from pytest_vllm_regress.environments.recipes import load
from pytest_vllm_regress.errors import RegressError
from pytest_vllm_regress.fuzz import artefact, corpus
from pytest_vllm_regress.reporting.html import page
from pytest_vllm_regress.reporting.junit import junit_xml
from pytest_vllm_regress.reporting.markdown import markdown_text
from pytest_vllm_regress.reporting.table import lines, print_table
from pytest_vllm_regress.util.masking import mask
from tests.helpers import ROOT

CASES = find_cases(ROOT / "cases")
cheap = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=40
)
STEERING = "\x1b\x07\x08\r\x00\x7f\x85\x9b\x9d\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2060\u2066\u2069\ufeff\U000e0041"
PIECES = [
    "[/x]",
    "[link=x]",
    "[bold]",
    "<script>",
    "</pre>",
    "]]>",
    "&lt;",
    "www.a.b",
    "GH-26",
    "#1",
    "@all",
    "0123abc",
    "`",
    "|",
    "](x)",
    "{{ 1 }}",
    "\x1b]8;;x\x07",
    "\n| x |",
    "\n# x",
]
HOSTILE = st.lists(
    st.text(alphabet=STEERING + "ab \n\t", max_size=6) | st.sampled_from(PIECES) | st.text(max_size=5),
    min_size=1,
    max_size=6,
).map("".join)


def run(text: str) -> RunResult:
    """A run that has the text in every field that takes any."""
    result = TestResult(
        text,
        text,
        Verdict.REGRESSED,
        text,
        "sim",
        text,
        {text: text},
        1.0,
        2.0,
        text,
        text,
        text,
        text,
        not_expected_because=text,
    )
    return RunResult((result,), (text,), text)


def terminal(text: str) -> str:
    stream = io.StringIO()
    print_table(run(text), Console(file=stream, width=80, force_terminal=False))
    with redirect_stdout(stream), redirect_stderr(stream):
        say(text)
        warn(text)
    return stream.getvalue() + "\n".join(lines(run(text), 40))


class Seen(HTMLParser):
    """The tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def sarif(text: str) -> str:
    found = audit(Inventory(text, ()), CASES, None, ())
    return json.dumps(to_sarif([found]))


PRINTERS: dict[str, Callable[[str], str]] = {
    "terminal": terminal,
    "page": lambda text: page(run(text)),
    "markdown": lambda text: markdown_text(run(text)),
    "junit": lambda text: junit_xml(run(text)),
    "sarif": sarif,
}


@pytest.mark.parametrize("name", PRINTERS)
@given(HOSTILE)
@example(STEERING)
@cheap
def test_nothing_that_steers_or_hides_gets_out(name: str, text: str) -> None:
    shown = PRINTERS[name](text)
    assert not [each for each in shown if not each.isprintable() and each != "\n"], name


@given(HOSTILE)
@cheap
def test_no_markup_gets_out(text: str) -> None:
    plain = Seen(page(run("plain"))).tags
    assert Seen(page(run(text))).tags.count("script") == plain.count("script")
    assert set(Seen(page(run(text))).tags) <= set(plain)
    assert len(ElementTree.fromstring(junit_xml(run(text))).findall(".//testcase")) == 1
    blocks = MarkdownIt("commonmark").enable("table").parse(markdown_text(run(text)))
    inline = {piece.type for block in blocks for piece in block.children or ()}
    assert inline <= {"text", "code_inline", "softbreak", "strong_open", "strong_close", "text_special"}
    assert not {"heading_open", "html_block", "fence", "code_block", "hr"} & {block.type for block in blocks}


@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="*"), max_size=20),
    st.sampled_from(["password={}", "--api-key {}", "https://me:{}@x", "Bearer {}", '{{"token": 1, "secret": "{}"}}']),
)
@cheap
def test_no_secret_gets_out_of_an_error(before: str, form: str) -> None:
    text = f"{before} {form.format('Tr0ub4dor')}"
    assert "Tr0ub4dor" not in mask(text)
    stream = io.StringIO()
    with redirect_stderr(stream), redirect_stdout(stream):
        assert cli.main(["audit", text.replace("\0", "")]) == 2
    assert "Tr0ub4dor" not in stream.getvalue()


def marker(path: Path) -> None:
    """A file where the cache has what it knows of an environment."""
    place = path.parent / "environments" / "x"
    place.mkdir(parents=True, exist_ok=True)
    (place / "vllm-regress.json").write_bytes(path.read_bytes())
    EnvironmentCache(path.parent).listing()


def environment(path: Path) -> None:
    """A file where a virtual environment has its settings, and one that names folders."""
    site = path.parent / "env" / "lib" / "python3.11" / "site-packages"
    (site / "a.dist-info").mkdir(parents=True, exist_ok=True)
    for file in (path.parent / "env" / "pyvenv.cfg", site / "a.pth", site / "a.dist-info" / "METADATA"):
        file.write_bytes(path.read_bytes())
    open_environment(path.parent / "env").imported()
    read_target(str(path.parent / "env"))


READERS: dict[str, Callable[[Path], object]] = {
    "case": load_case,
    "environments": load,
    "results": results.read,
    "evidence": proof.read,
    "artefact": artefact.load,
    "corpus": lambda path: list(corpus.read(path.parent)),
    "list": read_list,
    "bisection": lambda path: Notes(path, ("a",)),
    "record": read_record,
    "cache": marker,
    "environment": environment,
}
SHAPES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(int("9" * 400)) | st.text(max_size=5) | st.just([]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["schema", "results", "environments", "name", "size", "a", "packages", "cells"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)
FILES = (
    st.binary(max_size=60)
    | SHAPES.map(lambda value: json.dumps(value).encode())
    | st.text(alphabet="a.[]{}=\"'\n#1-r", max_size=40).map(str.encode)
)


@pytest.mark.parametrize("name", READERS)
@given(content=FILES)
@example(content=b"[" * 20_000)
@example(content=b".".join([b"a"] * 20_000) + b" = 1")
@example(content=b"a = " + b"9" * 5000)
@example(content=b"9" * 5000)
@example(content=b"")
@cheap
def test_whatever_a_file_holds_it_is_read_or_refused_in_words(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / "file.json"
    file.write_bytes(content)
    try:
        READERS[name](file)
    except RegressError as error:
        assert len(str(error)) < 20_000


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"cache", "environment", "corpus"}))
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    for make in (lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero")):
        file = tmp_path / "file.json"
        make(file)
        with pytest.raises(RegressError):
            READERS[name](file)
        file.unlink()


@pytest.mark.parametrize("name", ["results", "evidence", "artefact", "list", "case", "environments"])
def test_time_and_memory_stay_in_proportion(tmp_path: Path, name: str) -> None:
    """A file that is wrong in every place, as large as it may be, or a megabyte."""
    limit = {"evidence": 200_000, "case": 60_000}.get(name, 900_000)
    toml = name in ("case", "environments")
    parts = ['{"a": [1, "x", {"b": null}]}'] * (limit // 32)
    text = (
        f"a = [{', '.join('1' for _ in range(limit // 4))}]"
        if toml
        else '{"schema": 1, "tool_version": "1", "results": [' + ", ".join(parts) + "]}"
    )
    file = tmp_path / "file.json"
    file.write_text(text)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(RegressError):
        READERS[name](file)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB
