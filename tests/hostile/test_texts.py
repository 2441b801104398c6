"""Every output escapes hostile texts and masks secrets, in time and memory proportional to the
text's length."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import time
import tracemalloc
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
from pytest_vllm_regress.answers.audit.audit import audit, to_sarif
from pytest_vllm_regress.answers.audit.matching import Inventory
from pytest_vllm_regress.answers.audit.preflight import Concern
from pytest_vllm_regress.cases import results
from pytest_vllm_regress.cases.results import RunResult, TestResult
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.cli.context import print_columns, say, warn
from pytest_vllm_regress.environments.installed import Package
from pytest_vllm_regress.output.formats import junit_xml, markdown_text
from pytest_vllm_regress.output.pages.run_page import page
from pytest_vllm_regress.output.table import lines, print_table
from pytest_vllm_regress.plugin.leg import sanitize
from pytest_vllm_regress.util.masking import mask
from tests.helpers.cases import project_cases

CASE = next(case for case in project_cases() if case.id == "vllm-17173")
SECRET = "Tr0ub4dor"
cheap = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=40,
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
    st.text(alphabet=STEERING + "ab \n\t", max_size=6)
    | st.sampled_from(PIECES)
    | st.text(max_size=5),
    min_size=1,
    max_size=6,
).map("".join)
SECRETS = st.sampled_from(
    [
        "password={}",
        "--api-key {}",
        "https://me:{}@x",
        "Bearer {}",
        '{{"token": 1, "secret": "{}"}}',
    ]
)


def run(text: str) -> RunResult:
    """Return a run with the text in every field that accepts any text."""
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
    return stream.getvalue() + "\n".join(lines(run(text), 40))


def command(text: str) -> str:
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream):
        say(text)
        warn(text)
        print_columns(("title",), [(text,)])
    return stream.getvalue()


def sarif(text: str) -> str:
    """Return SARIF of a finding and a concern that contain the text wherever possible."""
    hostile = dataclasses.replace(CASE, title=text, workaround=text)
    vllm = Package("vllm", "0.8.4", Path("/x/vllm-0.8.4.dist-info"))
    result = audit(Inventory(text, (vllm,)), [hostile], None, ())
    assert result.findings
    concern = Concern("no-driver", text)
    return json.dumps(to_sarif([dataclasses.replace(result, concerns=(concern,))]))


PRINTERS: dict[str, Callable[[str], str]] = {
    "terminal": terminal,
    "command": command,
    "pytest": sanitize,
    "page": lambda text: page(run(text)),
    "markdown": lambda text: markdown_text(run(text)),
    "junit": lambda text: junit_xml(run(text)),
    "sarif": sarif,
}


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


PLAIN = Tags(page(run("plain"))).tags


@given(HOSTILE)
@example(STEERING)
@cheap
def test_no_output_contains_control_characters_or_markup(text: str) -> None:
    outputs = {name: printer(text) for name, printer in PRINTERS.items()}
    for name, output in outputs.items():
        assert not [
            letter for letter in output if not letter.isprintable() and letter not in "\n\t"
        ], name
    assert "\t" not in "".join(output for name, output in outputs.items() if name != "pytest")
    tags = Tags(outputs["page"]).tags
    assert tags.count("script") == PLAIN.count("script") and set(tags) <= set(PLAIN)
    assert len(ElementTree.fromstring(outputs["junit"]).findall(".//testcase")) == 1
    blocks = MarkdownIt("commonmark").enable("table").parse(outputs["markdown"])
    inline = {piece.type for block in blocks for piece in block.children or ()}
    assert inline <= {
        "text",
        "code_inline",
        "softbreak",
        "strong_open",
        "strong_close",
        "text_special",
    }
    assert not {"heading_open", "html_block", "fence", "code_block", "hr"} & {
        block.type for block in blocks
    }


@given(HOSTILE, SECRETS)
@cheap
def test_no_secret_is_printed(tmp_path: Path, before: str, form: str) -> None:
    """Secrets in a result file are masked when it is read; other secrets are masked when they are
    printed."""
    text = f"{before.encode(errors='replace').decode()} {form.format(SECRET)}"
    assert SECRET not in mask(text)
    for name in ("command", "pytest"):
        assert SECRET not in PRINTERS[name](text), name
    file = tmp_path / "results.json"
    results.write_results(file, dataclasses.replace(run("plain"), problems=(text,)))
    document = json.loads(file.read_text())
    (result,) = document["results"]
    result |= dict.fromkeys(("reason", "symptom", "dossier", "test", "command"), text)
    file.write_text(json.dumps(document))
    loaded = results.read_results(file)
    for output in (
        page(loaded),
        markdown_text(loaded),
        junit_xml(loaded),
        "\n".join(lines(loaded, 80)),
    ):
        assert SECRET not in output


@pytest.mark.parametrize("form", ["password={}", "https://me:{}@x", "\x1b]0;--api-key {}"])
def test_no_secret_is_printed_in_an_error(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", form.format(SECRET)]) == 2
    out, err = capsys.readouterr()
    assert err and SECRET not in out + err and "\x1b" not in out + err


def cost(printer: Callable[[str], str], text: str) -> tuple[float, int]:
    """Return the processor time (seconds, the least of three) and the peak memory (bytes) of
    printing the text."""
    times = []
    gc.collect()
    for _ in range(3):
        began = time.process_time()
        printer(text)
        times.append(time.process_time() - began)
    tracemalloc.start()
    try:
        printer(text)
        return min(times), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", PRINTERS)
@pytest.mark.parametrize(
    "part", ["x", "\n", "`[|<", STEERING], ids=["letters", "lines", "markup", "steering"]
)
def test_time_and_memory_grow_linearly(name: str, part: str) -> None:
    """Eight times the text takes about eight times as much; quadratic behaviour would take
    sixty-four times."""
    short, long = ((part * size)[:size] for size in (200, 1_600))
    PRINTERS[name](short)
    few, many = (cost(PRINTERS[name], text) for text in (short, long))
    assert many[0] < 0.05 or many[0] < 24 * few[0]
    assert many[1] < 24 * few[1]
