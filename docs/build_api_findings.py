"""Write docs/generated/api-findings.md from docs/api-findings: ``python
docs/build_api_findings.py``.

With folders as arguments (written by `vllm-regress fuzz api --out FOLDER`), it first replaces the
findings, one for each cause. With --ask, each finding is asked again in these environments.

    python docs/build_api_findings.py /tmp/seed-1 /tmp/seed-2 --ask vllm-0.11.2 --ask vllm-0.33.0
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

from finding_pages import listing, look_up, with_upstream
from page_parts import code

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.errors import ChildError, Unsupported
from pytest_vllm_regress.fuzz.api.checker import ApiChecker
from pytest_vllm_regress.fuzz.api.finding import ApiFinding, load, replay
from pytest_vllm_regress.fuzz.api.starting import LIMITS, ServerStarter

HERE = Path(__file__).parent
PLACE = HERE / "api-findings"
UPSTREAM = PLACE / "upstream.toml"
PAGE = HERE / "generated" / "api-findings.md"
HEAD = """# Findings about the API

<!-- written by docs/build_api_findings.py; do not edit -->

Requests that a stock server of the newest release answers wrongly, found by `vllm-regress fuzz api`, in their smallest
form. [How to fuzz](../how-to/fuzz-api.md). Each row links to a file with the request as a curl command and the options of
the server; `vllm-regress replay docs/api-findings/FILE` asks it again, `vllm-regress fuzz report docs/api-findings/FILE`
prints the text of vLLM's bug-report form. *Upstream*: reports of the same failure, or the words with which none was found.

"""
COLUMNS = ("route", "problem", "request", "what came", "cause")


def cells(finding: ApiFinding) -> tuple[str, ...]:
    """Return what a row says of a finding."""
    return (
        f"[{finding.question.method} {finding.question.route}](../api-findings/{finding.name})",
        finding.problem.outcome,
        code(finding.question.body or finding.question.path),
        code(finding.problem.words),
        code(finding.problem.key),
    )


def looked_up(finding: ApiFinding) -> dict[str, Any]:
    """Return what was looked up by hand for a finding."""
    return look_up(UPSTREAM, (finding.problem.key,))


def title(finding: ApiFinding) -> str:
    """Return the name of a finding that is by design."""
    return f"{finding.question.method} {finding.question.route}: {finding.problem.key}"


def page(findings: list[ApiFinding]) -> str:
    """Return the page of findings."""
    return HEAD + listing(findings, COLUMNS, cells, looked_up, title, PLACE.name)


def with_releases(findings: list[ApiFinding], environments: list[str]) -> list[ApiFinding]:
    """Ask every finding again in each environment."""
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    for name in environments:
        with bare_session(limits=LIMITS) as session:
            checker = ApiChecker(ServerStarter(session, name))
            for finding in findings:
                try:
                    answers[finding.name][checker.version] = replay(finding, checker)[0]
                except (Unsupported, ChildError):
                    answers[finding.name][checker.version] = "CANNOT RUN"
            checker.close()
    return [
        dataclasses.replace(finding, releases={**finding.releases, **answers[finding.name]})
        for finding in findings
    ]


def published() -> list[ApiFinding]:
    """Return the findings in docs/api-findings, sorted."""
    findings = [load(path) for path in PLACE.glob("*.json")]
    return sorted(findings, key=lambda one: (one.question.route, one.problem.outcome, one.name))


def collected(folders: list[Path]) -> list[ApiFinding]:
    """Return one finding per cause from the campaigns: the one with the shortest request."""
    smallest: dict[tuple[str, str], ApiFinding] = {}
    for finding in (load(path) for folder in folders for path in sorted(folder.glob("api-*.json"))):
        previous = smallest.get(finding.key, finding)
        smallest[finding.key] = min(previous, finding, key=lambda one: len(one.question.body or ""))
    return [
        dataclasses.replace(one, releases={one.versions["vllm"]: "STILL FAILS", **one.releases})
        for one in smallest.values()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ask", action="append", default=[])
    arguments = parser.parse_args()
    findings = collected(arguments.folders)
    if findings:
        for old in PLACE.glob("*.json"):
            old.unlink()
    for finding in with_releases(findings or published(), arguments.ask):
        with_upstream(finding, looked_up(finding)).save(PLACE)
    PAGE.write_text(page(published()), encoding="utf-8")


if __name__ == "__main__":
    main()
