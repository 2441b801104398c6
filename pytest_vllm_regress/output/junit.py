"""Results as JUnit XML.

Texts from result files are not trusted: they are truncated, and non-printable characters escaped.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from ..cases.results import RunResult, TestResult
from ..cases.verdict import Verdict, excerpt
from ..util.text import printable

MAX_REASON = 600


def junit_xml(run: RunResult) -> str:
    """Return JUnit XML with a suite for each environment.

    An unexpected verdict is a failure. REPRODUCED and NOT_APPLICABLE count as skipped, as in
    pytest.
    """
    root = ElementTree.Element("testsuites", name="vllm-regress")
    by_environment: dict[str, list[TestResult]] = {}
    for result in run.results:
        by_environment.setdefault(result.environment, []).append(result)
    for name, results in by_environment.items():
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(name), tests=str(len(results)))
        suite.set("failures", str(sum(not result.expected for result in results)))
        suite.set("errors", "0")
        suite.set(
            "skipped",
            str(sum(result.expected and result.verdict is not Verdict.FIXED for result in results)),
        )
        suite.set("time", f"{sum(result.duration_s for result in results):.3f}")
        for result in results:
            _test_case(suite, result)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test_case(suite: ElementTree.Element, result: TestResult) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_xml(result.case_id),
        name=_xml(result.test),
        time=f"{result.duration_s:.3f}",
    )
    properties = ElementTree.SubElement(case, "properties")
    values = {
        "vllm_case": result.case_id,
        "vllm_verdict": result.verdict.value,
        "vllm_device": result.device,
        "vllm_command": result.command,
    }
    for name, value in {**values, "vllm_version": result.versions.get("vllm", "")}.items():
        if value:
            ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
    message = _xml(
        f"{result.verdict.value}: {excerpt(result.not_expected_because or result.reason, MAX_REASON)}"
    )
    if not result.expected:
        ElementTree.SubElement(case, "failure", message=message).text = _xml(
            result.dossier or result.reason
        )
    elif result.verdict is not Verdict.FIXED:
        ElementTree.SubElement(case, "skipped", message=message)


def _xml(text: str) -> str:
    """Escape non-printable characters; all others are valid in XML."""
    return printable(text)
