"""Verdicts as Markdown and as JUnit XML. Texts from result files are hostile: they are escaped, and cut."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from ..cases.results import RunResult, TestResult
from ..cases.verdict import Verdict, excerpt
from .table import Cell, cells, oldest_first, printable

SIGNS = {
    Verdict.REPRODUCED: "●",
    Verdict.FIXED: "✓",
    Verdict.REGRESSED: "✗",
    Verdict.UNEXPECTEDLY_FIXED: "!",
    Verdict.NOT_APPLICABLE: "○",
    Verdict.INCONCLUSIVE: "?",
}
MAX_REASON = 600
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~&@:$])")


def markdown_text(run: RunResult) -> str:
    """GitHub-flavoured Markdown: the table case by environment, then why for every cell that is not as expected."""
    found = cells(run.results)
    if not found:
        return "No verdicts.\n"
    environments = oldest_first(run.results)
    lines = ["| case | " + " | ".join(map(_plain, environments)) + " |", "| --- |" + " --- |" * len(environments)]
    for case_id in dict.fromkeys(cell.case_id for cell in found):
        row = [
            "; ".join(_cell(c) for c in found if (c.case_id, c.environment) == (case_id, name)) for name in environments
        ]
        lines.append(f"| {_plain(case_id)} | " + " | ".join(row) + " |")
    unexpected = [cell for cell in found if not cell.expected]
    lines += ["", f"{len(unexpected)} of {len(found)} cells are not as expected." if unexpected else "All as expected."]
    if any(cell.device == "sim" for cell in found):
        lines.append("sim: a simulated device; every part of vLLM is real but the model's arithmetic.")
    for cell in unexpected:
        lines += ["", f"**{_plain(cell.case_id)} in {_plain(cell.environment)} on {cell.device}**", ""]
        lines += [f"- {_plain(line)}" for line in cell.why()]
    return (
        "\n".join([*lines, *(f"\nProblem: {_plain(excerpt(problem, MAX_REASON))}" for problem in run.problems)]) + "\n"
    )


def junit_xml(run: RunResult) -> str:
    """JUnit XML: a suite for each environment; what was not expected is a failure, REPRODUCED and NOT_APPLICABLE are skipped, as pytest has it."""
    root = ElementTree.Element("testsuites", name="vllm-regress")
    for name in dict.fromkeys(result.environment for result in run.results):
        here = [result for result in run.results if result.environment == name]
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(name), tests=str(len(here)))
        suite.set("failures", str(sum(not result.expected for result in here)))
        suite.set("errors", "0")
        suite.set("skipped", str(sum(result.expected and result.verdict is not Verdict.FIXED for result in here)))
        suite.set("time", f"{sum(result.duration_s for result in here):.3f}")
        for result in here:
            _test_case(suite, result)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test_case(suite: ElementTree.Element, result: TestResult) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=_xml(result.case_id), name=_xml(result.test), time=f"{result.duration_s:.3f}"
    )
    properties = ElementTree.SubElement(case, "properties")
    told = {
        "vllm_case": result.case_id,
        "vllm_verdict": result.verdict.value,
        "vllm_device": result.device,
        "vllm_command": result.command,
    }
    for name, value in {**told, "vllm_version": result.versions.get("vllm", "")}.items():
        if value:
            ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
    message = _xml(f"{result.verdict.value}: {excerpt(result.not_expected_because or result.reason, MAX_REASON)}")
    if not result.expected:
        ElementTree.SubElement(case, "failure", message=message).text = _xml(result.dossier or result.reason)
    elif result.verdict is not Verdict.FIXED:
        ElementTree.SubElement(case, "skipped", message=message)


def _cell(cell: Cell) -> str:
    verdict = f"{SIGNS[cell.verdict]} {_plain(cell.verdict.value)}"
    return f"{verdict if cell.expected else f'**{verdict}**'} ({cell.device})"


def _plain(text: str) -> str:
    """``text`` on one line, with nothing left that Markdown, HTML or a mention would take for its own."""
    return _MARKDOWN.sub(r"\\\1", " ".join(printable(text).split())).replace("\\<", "&lt;").replace("\\>", "&gt;")


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
