"""Write docs/generated/parsers.md and docs/generated/parser-findings.md: ``python
docs/build_parser_findings.py``.

With folders as arguments (written by `vllm-regress fuzz parsers --out FOLDER`), it first takes over
what they came to: for each release how its parsers answered goes into docs/records/parsers.json,
and the findings of the release named by --publish replace those in docs/parser-findings. With
--ask, each finding is asked again in these environments.

    python docs/build_parser_findings.py /tmp/0.11.2 /tmp/0.33.0 --publish 0.33.0 --ask vllm-0.11.2
    --ask vllm-0.33.0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finding_pages import listing, look_up, with_upstream
from page_parts import code

from pytest_vllm_regress.engines.standalone import bare_session
from pytest_vllm_regress.errors import Unsupported
from pytest_vllm_regress.fuzz.parsers.checker import ParserChecker
from pytest_vllm_regress.fuzz.parsers.cuts import CutKind
from pytest_vllm_regress.fuzz.parsers.finding import ParserFinding, load, replay
from pytest_vllm_regress.fuzz.parsers.oracle import WHOLE
from pytest_vllm_regress.fuzz.stepped import JOURNAL

HERE = Path(__file__).parent
PLACE = HERE / "parser-findings"
UPSTREAM = PLACE / "upstream.toml"
RECORD = HERE / "records" / "parsers.json"
TABLE = HERE / "generated" / "parsers.md"
PAGE = HERE / "generated" / "parser-findings.md"
WAYS = (WHOLE, *CutKind)
COLUMNS = ("parser", "problem", "pieces", "what came", "in")
LETTERS = dict(zip(WAYS, "wctsmo", strict=True))

TABLE_HEAD = """# Parsers by release and kind of cut

<!-- written by docs/build_parser_findings.py; do not edit -->

What `vllm-regress fuzz parsers` saw: the same drawn answers in each parser's own format, asked as the server of the release
asks it. [How to fuzz parsers](../how-to/fuzz-parsers.md) explains the cuts. A cell shows the ways in which an answer was
wrong at least once, and in parentheses the share of answers that were wrong in the worst way:

| letter | the answer arrives |
| --- | --- |
| w | whole, without a stream |
| c | in characters |
| t | in tokens |
| s | in several tokens at a time |
| m | with markers alone |
| o | at once |

A stream that is wrong in the same way as the whole answer counts as w alone. *sound* means that no drawn answer was wrong. It
does not mean that none can be: strings that a format cannot enclose, text after calls and unfinished answers were not
drawn. In 0.8.5 and 0.11.2 the server itself loses the name of a call that arrives at once, and in 0.8.5 the end of some
streams: every parser shows it there. An empty cell: the release has no such parser, or it reads another format.

"""
PAGE_HEAD = """# Findings about parsers

<!-- written by docs/build_parser_findings.py; do not edit -->

Failures that `vllm-regress fuzz parsers` found in the newest release, in their smallest form. [How to
fuzz](../how-to/fuzz-parsers.md), [parsers by release](parsers.md). Each row links to a file; `vllm-regress replay
docs/parser-findings/FILE` asks it again. Several rows may have one cause. *Upstream*: reports of the same failure, or the
words with which none was found.

"""


def label_of(step: dict[str, Any]) -> str:
    """Return the parser of a step; its formats count as one."""
    return str(step["label"]).partition(", format")[0]


def summary(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the release of a campaign, and for each parser the number of answers and of wrong ones
    by way and kind.

    A campaign against some parsers is partial: it replaces what is recorded of these alone.
    """
    journal = json.loads((folder / JOURNAL).read_text())
    parsers: dict[str, Any] = {}
    for step in journal["steps"]:
        entry = parsers.setdefault(label_of(step), {"asked": 0, "wrong": {}})
        entry["asked"] += step["asked"]
        for way, kind, count in step["wrong"]:
            kinds = entry["wrong"].setdefault(way, {})
            kinds[kind] = kinds.get(kind, 0) + count
    plan = journal["plan"]
    return plan["vllm"], {
        "seed": plan["seed"],
        "parsers": parsers,
        "partial": bool(plan["parsers"]),
    }


def cell(entry: dict[str, Any] | None) -> str:
    """Return a cell of the table of parsers."""
    if entry is None:
        return ""
    wrong = {way: sum(kinds.values()) for way, kinds in entry["wrong"].items()}
    if not wrong:
        return "sound"
    letters = "".join(LETTERS[way] if way in wrong else "·" for way in WAYS)
    return f"`{letters}` ({100 * max(wrong.values()) / entry['asked']:.0f} %)"


def table(record: dict[str, Any]) -> str:
    """Return the page of parsers by release."""
    releases = sorted(record, key=lambda release: [int(part) for part in release.split(".")])
    names = sorted(
        {name for release in releases for name in record[release]["parsers"]},
        key=lambda name: ("(" in name, name),
    )
    lines = [f"| parser | {' | '.join(releases)} |", f"| --- |{' --- |' * len(releases)}"]
    for name in names:
        cells = [cell(record[release]["parsers"].get(name)) for release in releases]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    sound = [
        f"{release}: {sum(not entry['wrong'] for entry in record[release]['parsers'].values())} of {len(record[release]['parsers'])}"
        for release in releases
    ]
    return TABLE_HEAD + "\n".join(lines) + f"\n\nSound parsers: {', '.join(sound)}.\n"


def cells(finding: ParserFinding) -> tuple[str, ...]:
    """Return what a row says of a finding."""
    pieces = (
        finding.question.cuts[0][1].pieces if finding.question.cuts else (finding.question.text,)
    )
    return (
        f"[{finding.parser}](../parser-findings/{finding.name})",
        finding.problem.kind,
        code(" / ".join(pieces)),
        code(finding.problem.words),
        ", ".join(finding.kinds) or "whole",
    )


def looked_up(finding: ParserFinding) -> dict[str, Any]:
    """Return what was looked up by hand for a finding: the entry of its file, of its parser and
    kind of problem, or of its parser."""
    parser = f"{finding.parser.name} {finding.parser.kind}"
    return look_up(UPSTREAM, (finding.name, f"{parser}: {finding.problem.kind}", parser))


def in_parsers(findings: Sequence[ParserFinding]) -> str:
    """Return in how many parsers the findings are."""
    return (
        f" in {len({(finding.parser.kind, finding.parser.name) for finding in findings})} parsers"
    )


def page(findings: list[ParserFinding]) -> str:
    """Return the page of findings."""
    return PAGE_HEAD + listing(
        findings, COLUMNS, cells, looked_up, lambda one: str(one.parser), PLACE.name, in_parsers
    )


def with_releases(findings: list[ParserFinding], environments: list[str]) -> list[ParserFinding]:
    """Ask every finding again in each environment."""
    answers: dict[str, dict[str, str]] = defaultdict(dict)
    with bare_session() as session:
        for name in environments:
            checker = ParserChecker(session, name)
            for finding in findings:
                try:
                    answers[finding.name][checker.version] = replay(finding, checker)[0]
                except Unsupported:
                    continue
            checker.close()
    return [
        dataclasses.replace(finding, releases={**finding.releases, **answers[finding.name]})
        for finding in findings
    ]


def published() -> list[ParserFinding]:
    """Return the findings in docs/parser-findings, sorted."""
    findings = [load(path) for path in PLACE.glob("*.json")]
    return sorted(
        findings,
        key=lambda one: (
            one.parser.kind,
            one.parser.name,
            one.problem.side,
            one.problem.kind,
            one.name,
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--publish", default="")
    parser.add_argument("--ask", action="append", default=[])
    arguments = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    findings: list[ParserFinding] = []
    for folder in arguments.folders:
        release, entry = summary(folder)
        earlier = record.get(release, entry) if entry.pop("partial") else entry
        record[release] = {**entry, "parsers": {**earlier["parsers"], **entry["parsers"]}}
        if release == arguments.publish:
            findings += [load(path) for path in sorted(folder.glob("parser-*.json"))]
    if findings:
        for old in PLACE.glob("*.json"):
            old.unlink()
        for finding in with_releases(findings, arguments.ask):
            finding.save(PLACE)
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for finding in published():
        with_upstream(finding, looked_up(finding)).save(PLACE)
    TABLE.write_text(table(record), encoding="utf-8")
    PAGE.write_text(page(published()), encoding="utf-8")


if __name__ == "__main__":
    main()
