"""An answer as a report for people, as JSON and as SARIF, with what was tried in environments."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...util.report import Report, Section, Table
from .. import sarif
from .answer import UsesAnswer, in_range
from .use import HEADLINE, PARTS, Use

if TYPE_CHECKING:
    from .smoke import Smoke

SCHEMA_VERSION = 1
MAX_LISTED = 100
MAX_NAMED = 20
_SARIF_HELP = (
    "Change the code, ask for the version, or narrow the range of vLLM that the project declares."
)


def span(releases: Collection[str], all_releases: Sequence[str]) -> str:
    """Return releases as text, those that follow each other as ``0.21.0 to 0.24.0``."""
    groups = groupby(all_releases, key=lambda release: release in releases)
    runs = [list(group) for is_chosen, group in groups if is_chosen]
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def report(answer: UsesAnswer, source: str, smokes: Sequence[Smoke] = ()) -> Report:
    """Return the answer, and what was tried, for people."""
    sections = [Section(parts=(tuple(_headline(answer)),))]
    if first := list(first_missing(answer))[:MAX_LISTED]:
        sections.append(Section("first thing missing", (Table(_HEADER, first),)))
    for title, items in _lists(answer).items():
        more = [f"and {len(items) - MAX_LISTED} more"] if len(items) > MAX_LISTED else []
        if items:
            lines = (*map(str, items[:MAX_LISTED]), *more)
            sections.append(Section(title, (lines,)))
    for smoke in smokes:
        title = f"{smoke.environment}, vLLM {smoke.version}: {_summary(smoke)}"
        sections.append(Section(title, (tuple(_tried(smoke)[:MAX_LISTED]),)))
    project = answer.project
    uses, files = _count(len(project.uses), "use"), _count(project.files, "file")
    return Report(f"{source}: {uses} of vLLM in {files}", sections)


def _headline(answer: UsesAnswer) -> Iterator[str]:
    if not answer.project.uses:
        yield "nothing to judge: no use of vLLM was found (bodies of HTTP requests are not read)"
        return
    releases = list(answer.problems)
    complete = span(answer.complete, releases) or "no release"
    count = f"{len(answer.complete)} of {len(releases)} releases, {releases[0]} to {releases[-1]}"
    everything = "everything else" if answer.is_partial else "everything"
    yield f"{everything} exists in: {complete} ({count})"
    for part in answer.parts[1:]:
        if (complete_for := answer.complete_for(part)) != answer.complete:
            yield f"{part}: everything exists in {span(complete_for, releases) or 'no release'}"
    for kinds, says in (
        (("route", "metric"), "does not exist in"),
        (("environment",), "is ignored by"),
    ):
        for name, lacking in list(answer.lacking(kinds).items())[:MAX_NAMED]:
            yield f"{name} {says} {span(lacking, releases)}"
    yield from _declared(answer)


def _lists(answer: UsesAnswer) -> dict[str, Sequence[object]]:
    """Return the titles of lists, and what is in these."""
    problems = answer.problems[answer.newest]
    breaking = [problem for problem in problems if problem.breaks]
    missing = {
        part: [problem for problem in breaking if problem.use.part == part] for part in PARTS
    }
    title = f"missing in the newest release, {answer.newest}"
    main = answer.parts[0]
    return {
        title: missing.pop(main),
        **{f"{title}: {part}": listed for part, listed in missing.items()},
        f"ignored by {answer.newest}": [problem for problem in problems if not problem.breaks],
        f"handled: falls back in {answer.newest}": answer.fallbacks,
        "perhaps handled, so not counted": [
            f"{p.use.place}: {p.text}: {span(p.releases, list(answer.problems))} ({p.use.perhaps})"
            for p in answer.perhaps
        ],
        "will be removed": answer.deprecated,
        "in no release, so not counted (made at run time, or not vLLM's)": [
            f"{use.place}: {use.name}" for use in answer.unknown
        ],
    }


_HEADER = ("vLLM", "where", "what", "now", "more")


def first_missing(answer: UsesAnswer) -> Iterator[tuple[str, ...]]:
    """Yield rows: releases, the first thing that they lack, and how many more they lack; those with
    the same are together. They are about what the headline is about."""
    counted = {
        release: [p for p in problems if p.use.part == answer.parts[0] and p.use.kind in HEADLINE]
        for release, problems in answer.problems.items()
    }
    lacking = [(release, problems) for release, problems in counted.items() if problems]
    for _, group in groupby(
        lacking, key=lambda item: (item[1][0].use.place, item[1][0].text, len(item[1]))
    ):
        releases, ((first, *more), *_) = zip(*group, strict=True)
        where = span(releases, list(answer.problems))
        yield where, str(first.use.place), first.text, first.instead or "-", str(len(more))


def _declared(answer: UsesAnswer) -> Iterator[str]:
    for declared in answer.project.declared:
        if broken := answer.broken.get(declared):
            state = f"breaks with {span(broken, list(answer.problems))}"
        elif in_range(declared, answer.problems):
            state = "nothing breaks"
        else:
            state = "no known release is in this range"
        yield f"declared: vllm{declared.specifier} ({declared.place}): {state}"
    if not answer.project.declared:
        yield "declared: no range of vllm"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _summary(smoke: Smoke) -> str:
    states = {False: "exist", True: "missing", None: "undecided"}
    counts = Counter(None if lacks is None else bool(lacks) for lacks in smoke.missing.values())
    words = [f"{counts[key]} uses {state}" for key, state in states.items() if counts[key]]
    if smoke.starts:
        started = sum(not start.error for start in smoke.starts)
        words.append(f"{started} of {len(smoke.starts)} servers started")
    return ", ".join(words) or "nothing to check"


def _tried(smoke: Smoke) -> list[str]:
    problems = set(smoke.problems)
    lines = []
    for use, missing in smoke.missing.items():
        if missing:
            handled = use not in problems and use.kind != "environment"
            lines.append(f"{use.place}: {use.name}: {missing}{' (handled)' if handled else ''}")
    for start in smoke.starts:
        where = str(start.command.place) if start.command.place.file else "no command"
        left_out = f" (without {', '.join(start.left_out)})" if start.left_out else ""
        error = f"did not start: {start.error}" if start.error else "started, and generated a token"
        command = f"vllm serve {' '.join(start.words)}".rstrip()
        lines.append(f"{where}: {command}{left_out}: {error}")
    lines += [f"{use.place}: {use.name}: the history says otherwise" for use in smoke.differs]
    return list(dict.fromkeys(lines))


# JSON


def to_json(answer: UsesAnswer, source: str, smokes: Sequence[Smoke] = ()) -> dict[str, Any]:
    """Return plain values for ``--format json``."""
    project = answer.project
    document = {
        "schema": SCHEMA_VERSION,
        "source": source,
        "files": project.files,
        "uses": len(project.uses),
        "complete": list(answer.complete),
        "parts": {part: list(answer.complete_for(part)) for part in answer.parts},
        "declared": [
            {
                **asdict(declared),
                "releases": list(in_range(declared, answer.problems)),
                "broken": list(answer.broken.get(declared, ())),
            }
            for declared in project.declared
        ],
        "releases": {
            release: [
                {**_use(p.use), "missing": p.text, "instead": p.instead or None} for p in problems
            ]
            for release, problems in answer.problems.items()
        },
        "newest": answer.newest,
        "fallbacks": [{**_use(p.use), "missing": p.text} for p in answer.fallbacks],
        "perhaps": [
            {**_use(p.use), "missing": p.text, "releases": list(p.releases), "why": p.use.perhaps}
            for p in answer.perhaps
        ],
        "deprecated": [{**_use(d.use), "message": d.message} for d in answer.deprecated],
        "unknown": [_use(use) for use in answer.unknown],
        "notes": list(project.notes),
    }
    return {**document, "runs": list(map(_run, smokes))} if smokes else document


def _use(use: Use) -> dict[str, Any]:
    return {"use": use.name, "kind": use.kind, "part": use.part, **vars(use.place)}


def _run(smoke: Smoke) -> dict[str, Any]:
    uses = [
        {
            **_use(use),
            "exists": None if missing is None else not missing,
            "missing": missing or None,
            "guarded": use.guarded,
            "history_differs": use in smoke.differs,
        }
        for use, missing in smoke.missing.items()
    ]
    starts = []
    for start in smoke.starts:
        fields = {**vars(start), "error": start.error or None}
        starts.append(vars(fields.pop("command").place) | fields)
    about = {"environment": smoke.environment, "version": smoke.version, "failed": smoke.failed}
    return {**about, "uses": uses, "starts": starts}


# SARIF


def to_sarif(answer: UsesAnswer, source: str) -> dict[str, Any]:
    """Return a SARIF log: a rule for each kind of use, a result for each use that some release
    lacks or will remove."""
    return sarif.to_sarif(list(_sarif_results(answer, source)))


def _sarif_results(answer: UsesAnswer, source: str) -> Iterator[sarif.SarifResult]:
    # What a release of a declared range lacks is a warning. Without a range the newest counts.
    wanted = {release for releases in answer.broken.values() for release in releases}
    if not answer.project.declared:
        wanted = {answer.newest}
    lacking = defaultdict(list)
    for release, problems in answer.problems.items():
        for problem in problems:
            lacking[problem.use.kind, problem.use.place, problem.text].append(release)
    for (kind, place, text), releases in lacking.items():
        rule = _rule(kind, f"A {kind} that some release of vLLM lacks")
        level = "note" if wanted.isdisjoint(releases) else "warning"
        message = f"{text}: vLLM {span(releases, list(answer.problems))}"
        yield sarif.SarifResult(rule, level, message, Path(place.file), place.line, source)
    for handled in answer.perhaps:
        use = handled.use
        rule = _rule(use.kind, f"A {use.kind} that some release of vLLM lacks")
        where = span(handled.releases, list(answer.problems))
        message = f"{handled.text}: vLLM {where}, perhaps handled by {use.perhaps}"
        yield sarif.SarifResult(rule, "note", message, Path(use.place.file), use.place.line, source)
    for deprecation in answer.deprecated:
        use = deprecation.use
        rule = _rule("deprecated", "Something that vLLM will remove")
        message = f"{use.name}: {deprecation.message}"
        yield sarif.SarifResult(rule, "note", message, Path(use.place.file), use.place.line, source)


def _rule(kind: str, title: str) -> sarif.SarifRule:
    return sarif.SarifRule(f"vllm-{kind}", title, _SARIF_HELP, ("vllm", "compatibility"))
