"""Write docs/generated/api-findings.md from docs/api-findings: ``python docs/build_api_findings.py``.

With folders as arguments (written by `vllm-regress fuzz api --out FOLDER`), it first replaces the findings, one for each cause. With --ask, each
finding is asked again in these environments.

    python docs/build_api_findings.py /tmp/seed-1 /tmp/seed-2 --ask vllm-0.11.2 --ask vllm-0.33.0
"""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from page_parts import code

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.errors import ChildError, Unsupported
from pytest_vllm_regress.fuzz.api.checker import ApiChecker
from pytest_vllm_regress.fuzz.api.finding import ApiFinding, load, replay
from pytest_vllm_regress.fuzz.api.starting import LIMITS, ServerStarter
from pytest_vllm_regress.fuzz.upstream_search import Upstream

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


def row(finding: ApiFinding) -> str:
    """Return a row of the table of findings."""
    failing = [release for release, answer in finding.releases.items() if answer == "STILL FAILS"]
    sound = [release for release, answer in finding.releases.items() if answer == "FIXED"]
    upstream = ", ".join(finding.upstream.reports) or (
        f"not found ({'; '.join(finding.upstream.words)})" if finding.upstream.words else "not looked up"
    )
    cells = (
        f"[{finding.question.method} {finding.question.route}](../api-findings/{finding.name})",
        finding.problem.outcome,
        code(finding.question.body or finding.question.path),
        code(finding.problem.words),
        code(finding.problem.key),
        ", ".join(failing),
        ", ".join(sound) or "-",
        upstream,
    )
    return f"| {' | '.join(cells)} |"


def page(everything: list[ApiFinding]) -> str:
    """Return the page of findings. Those that are by design are listed apart, with the reason."""
    findings = [finding for finding in everything if "by_design" not in looked_up(finding)]
    designed = [finding for finding in everything if finding not in findings]
    head = "| route | problem | request | what came | cause | fails in | right in | upstream |\n|" + " --- |" * 8
    known = sum(bool(finding.upstream.reports) for finding in findings)
    searched = sum(bool(finding.upstream.words) for finding in findings)
    count = f"{len(findings)} findings; {searched} looked up, {known} of these reported upstream."
    reasons = [
        f"- [{one.question.method} {one.question.route}: {one.problem.key}](../api-findings/{one.name}): {looked_up(one)['by_design']}."
        for one in designed
    ]
    section = "\n## By design\n\n" + "\n".join(reasons) + "\n" if reasons else ""
    return HEAD + "\n".join([head, *map(row, findings)]) + f"\n\n{count}\n{section}"


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
        dataclasses.replace(finding, releases={**finding.releases, **answers[finding.name]}) for finding in findings
    ]


def looked_up(finding: ApiFinding) -> dict[str, Any]:
    """Return what was looked up by hand for a finding."""
    known: dict[str, dict[str, Any]] = tomllib.loads(UPSTREAM.read_text(encoding="utf-8"))
    return known.get(finding.problem.key, {"words": [], "reports": []})


def with_upstream(finding: ApiFinding) -> ApiFinding:
    """Return the finding with the result of the search for upstream reports."""
    entry = looked_up(finding)
    return dataclasses.replace(finding, upstream=Upstream(tuple(entry["words"]), tuple(entry["reports"])))


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ask", action="append", default=[])
    arguments = parser.parse_args()
    findings = collected(arguments.folders)
    if findings:
        for old in PLACE.glob("*.json"):
            old.unlink()
    for finding in with_releases(findings or published(), arguments.ask):
        with_upstream(finding).save(PLACE)
    PAGE.write_text(page(published()), encoding="utf-8")


if __name__ == "__main__":
    main()
