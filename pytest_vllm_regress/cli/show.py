"""``vllm-regress show``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..answers.audit.boundaries import boundaries
from ..answers.audit.verdict_table import read_table
from ..answers.fixes.index import NAME, fix_index
from ..answers.fixes.overview import subsystem
from ..cases.model import fields_of
from ..cases.rates import recent_results
from ..cases.results import RunResult, merge_results
from ..errors import UsageError
from ..util.text import one_line
from .context import Invocation, TextOrJson, print_json, say, warn_of

PLACE = re.compile(r"vllm/(?P<path>[\w/]+\.py)(?::(?P<function>\w+))?")
"""A module of vLLM, or a function in it."""
UPSTREAM = "https://github.com/vllm-project/vllm"


def show(command: Invocation, case_id: str, format: TextOrJson = "text") -> None:
    """Show all fields of a case and the ends of its range.

    It says which of these ends were observed. Of a change of vLLM, such as vllm#44483, it shows what
    was changed, which releases contain it, and which cases are about it. Of a function, such as
    vllm/v1/core/sched/scheduler.py:schedule, it lists the releases and changes that changed it.
    """

    if NAME.fullmatch(case_id):
        _show_fix(command, case_id, as_json=format == "json")
        return
    if place := PLACE.fullmatch(case_id):
        _show_changes(place["path"], place["function"] or "", as_json=format == "json")
        return
    (case,) = command.select([case_id])
    # Tests check the built-in cases, and the check takes a second.
    if command.cases_dir is not None:
        warn_of(case, command.loaded.cases)
    # Runs of this machine count until `report --write` records them.
    latest = merge_results([RunResult(tuple(recent_results([case])))])
    ends = boundaries(case, read_table([case]).with_results(latest.results))
    if format == "json":
        print_json({**fields_of(case), "boundaries": [end.to_json() for end in ends]})
        return
    for name, value in fields_of(case).items():
        if name == "variants":
            _print_variants(value)
        elif value not in (None, "", [], {}, False):
            say(f"{name + ':':14}{_one_line(value)}")
    for end in ends:
        say(f"{'boundary:':14}{end}")


def _show_fix(command: Invocation, name: str, *, as_json: bool) -> None:
    index = fix_index()
    fix = index.find(name)
    release, reverted = index.first_release(fix), index.reverted_by(fix)
    address = f"{UPSTREAM}/pull/{fix.number}"
    cases = [case.id for case in command.cases() if address in (*case.fixed_by, *case.upstream)]
    fields = {
        "title": fix.title,
        "merged": fix.date,
        "commit": fix.commit,
        "in": f"{release} and later" if release else "no release yet",
        "taken back": reverted.name if reverted else "",
        "subsystem": subsystem(fix),
        "changes": [f"{path} ({', '.join(names)})" for path, names in fix.changed.items()],
        "words": fix.terms.split(),
        "cases": cases,
        "upstream": address,
        "tests": fix.tests,
        "new case": f"vllm-regress new --from {fix.name}",
        "bisect": f"vllm-regress bisect {cases[0]}" if cases else "",
    }
    if as_json:
        print_json({"fix": fix.name, **fields})
        return
    for field, value in fields.items():
        if value:
            say(f"{field + ':':14}{_one_line(value)}")


def _show_changes(path: str, function: str, *, as_json: bool) -> None:
    index = fix_index()
    changes = index.changes_of(path, function)
    if not changes:
        what = f"function {function} of vllm/{path}" if function else f"module vllm/{path}"
        raise UsageError(f"no known change of vLLM changes the {what}")
    rows = [
        (index.first_release(change) or "no release yet", change.name, change.title)
        for change in changes
    ]
    if as_json:
        print_json([dict(zip(("release", "fix", "title"), row, strict=True)) for row in rows])
        return
    for release, name, title in rows:
        say(f"{release + ':':16}{name or 'pull request not known':24}{title}".rstrip())


def _print_variants(variants: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one variant per line, since a reason may contain any separator."""
    for name, variant in variants.items():
        affected = (
            f"affected {_one_line(variant['affected'])}"
            if variant["affected"]
            else "never affected"
        )
        reason = one_line(variant["reason"])
        say(f"{'variant:':14}{name}: {affected}{reason and f' ({reason})'}")


def _one_line(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(
            f"{key} {_one_line(item)}".strip()
            for key, item in value.items()
            if item not in ("", [])
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(_one_line, value))
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))
