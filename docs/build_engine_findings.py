"""Write docs/generated/engine-findings.md: ``python docs/build_engine_findings.py``.

With folders as arguments (written by `vllm-regress fuzz engines --out FOLDER` or `fuzz lifecycle`),
their findings first replace those of the same hunter in docs/engine-findings. With --ask, each
finding is asked again in these environments.

    python docs/build_engine_findings.py /tmp/engines /tmp/lifecycle --ask vllm-0.33.0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from finding_pages import listing, look_up, with_upstream
from page_parts import code

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.fuzz.engines import finding as of_engines
from pytest_vllm_regress.fuzz.engines.checker import PairChecker
from pytest_vllm_regress.fuzz.engines.finding import EngineFinding
from pytest_vllm_regress.fuzz.lifecycle import finding as of_lifecycle
from pytest_vllm_regress.fuzz.lifecycle.checker import StoryChecker
from pytest_vllm_regress.fuzz.lifecycle.finding import StoryFinding

HERE = Path(__file__).parent
PLACE = HERE / "engine-findings"
UPSTREAM = PLACE / "upstream.toml"
PAGE = HERE / "generated" / "engine-findings.md"
Finding = EngineFinding | StoryFinding
COLUMNS = ("hunter or pair", "what is wrong", "requests or story", "observed")
LONG = 240
"""Maximum length of a request or story in a table cell, in characters."""

HEAD = """# Findings about engines and servers

<!-- written by docs/build_engine_findings.py; do not edit -->

What [`vllm-regress fuzz engines`](../how-to/fuzz-engines.md) and [`fuzz lifecycle`](../how-to/fuzz-lifecycle.md) found in the
newest release, in its smallest form. Each row links to a file; `vllm-regress replay docs/engine-findings/FILE` asks it
again. Several rows may have one cause. *Upstream*: reports of the same failure, or the words with which none was found.

"""


def load(path: Path) -> Finding:
    """Return the finding in a file of either hunter."""
    is_story = of_lifecycle.is_story_finding(json.loads(path.read_text(encoding="utf-8")))
    return of_lifecycle.load(path) if is_story else of_engines.load(path)


def kind_of(finding: Finding) -> str:
    """Return the kind of a finding's difference or problem."""
    return finding.problem.kind if isinstance(finding, StoryFinding) else finding.difference.kind


def cells(finding: Finding) -> tuple[str, ...]:
    """Return what a row says of a finding."""
    if isinstance(finding, StoryFinding):
        where, what, words = "lifecycle", code(finding.story.to_text(), LONG), finding.problem.words
    else:
        where, words = finding.pair, finding.difference.words
        what = " ".join(
            code(json.dumps(request.to_json()), LONG) for request in finding.question.requests
        )
    return (
        f"[{where}](../engine-findings/{finding.name})",
        kind_of(finding),
        what,
        code(words, LONG),
    )


def looked_up(finding: Finding) -> dict[str, Any]:
    """Return what was looked up by hand for a finding: the entry of its file, or of its kind."""
    return look_up(UPSTREAM, (finding.name, kind_of(finding)))


def published() -> list[Finding]:
    """Return the findings in docs/engine-findings, sorted by name."""
    return sorted((load(path) for path in PLACE.glob("*.json")), key=lambda finding: finding.name)


def page(findings: list[Finding]) -> str:
    """Return the page of findings."""
    return HEAD + listing(findings, COLUMNS, cells, looked_up, kind_of, PLACE.name)


def with_releases(findings: list[Finding], environments: list[str]) -> list[Finding]:
    """Ask every finding again in each environment."""
    answers: dict[str, dict[str, str]] = {
        finding.name: dict(finding.releases) for finding in findings
    }
    with bare_session(max_engines=4) as session:
        for name in environments:
            pairs, stories = PairChecker(session, name), StoryChecker(session, name)
            for finding in findings:
                is_story = isinstance(finding, StoryFinding)
                answer = (
                    of_lifecycle.replay(finding, stories)
                    if is_story
                    else of_engines.replay(finding, pairs)
                )
                answers[finding.name][pairs.version] = answer[0]
            stories.close()
    return [dataclasses.replace(finding, releases=answers[finding.name]) for finding in findings]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ask", action="append", default=[])
    arguments = parser.parse_args()
    new = [load(path) for folder in arguments.folders for path in sorted(folder.glob("*-*.json"))]
    for finding in published():
        if any(type(one) is type(finding) for one in new):
            (PLACE / finding.name).unlink()
    for finding in [*published(), *new]:
        finding.save(PLACE)
    everything = with_releases(published(), arguments.ask) if arguments.ask else published()
    for finding in everything:
        with_upstream(finding, looked_up(finding)).save(PLACE)
    PAGE.write_text(page(published()), encoding="utf-8")


if __name__ == "__main__":
    main()
