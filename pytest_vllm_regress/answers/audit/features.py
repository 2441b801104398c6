"""Whether a release has the feature that a documented failure is about: by recorded runs, or else by
the history of vLLM's API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from ...cases.model import Case
from ...cases.needs import TestNeeds, needs_of
from ...environments.installed import VLLM
from ...util.versions import version_of
from ..api_history.store import History, history
from .boundaries import before_feature
from .verdict_table import VerdictTable

_KINDS = {"tool_call_parser": "tool", "reasoning_parser": "reasoning"}
_IN_TITLE = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+|/v\d/[a-z_/]+)")
"""An option or a route that is the subject of a case."""
_FIRST_WITH_TOOLS = Version("0.6")
_FIRST_WITH_V1 = Version("0.6.4")
"""Releases before the API history begins, in which tool calls and the V1 engine appeared."""
_COMMON = ("VLLM_USE_V1", "VLLM_WORKER_MULTIPROC_METHOD")


def lacks_feature(case: Case, versions: Mapping[str, str], table: VerdictTable) -> str:
    """Return what the release lacks of the feature that fails; empty if it has it, or nothing says
    so."""
    release = next((version_of(versions[name]) for name in VLLM if name in versions), None)
    untested = release is not None and not _was_tested(case, release, table)
    reason = _lacks(case, Version(release.public), history()) if release and untested else ""
    if reason:
        return reason
    if before_feature(case, versions, table):
        return "it does not have the feature that fails"
    return ""


def _was_tested(case: Case, release: Version, table: VerdictTable) -> bool:
    """Return whether the test could be run there, so that the feature exists."""
    return any(
        entry.shown is not None
        for name in VLLM
        for entry in table.at(case.id, name, release.public)
    )


def _lacks(case: Case, release: Version, api: History) -> str:
    number = release_number(api, release)
    if number is None:
        return ""
    for name in _IN_TITLE.findall(case.title):
        section = "options" if name.startswith("--") else "routes"
        if api.table(section).get(name) and api.entry(section, name, number) is None:
            return f"it has no {name}"
    tests = [needs for needs in needs_of(case) if needs.variant is None]
    lacks = [next(_of_test(needs, release, number, api), "") for needs in tests]
    return lacks[0] if lacks and all(lacks) else ""


def release_number(api: History, release: Version) -> int | None:
    """Return the number of a release in the history; the first for older ones, which lack at least
    what the first lacks, None for newer and unknown ones."""
    known = list(map(Version, api.releases))
    if release < known[0]:
        return 0
    same = [number for number, version in enumerate(known) if version == release]
    return same[0] if same else None


def _of_test(needs: TestNeeds, release: Version, number: int, api: History) -> Iterator[str]:
    """Yield what the release lacks of what a test needs."""
    for option, names in needs.parsers.items():
        kind = _KINDS.get(option, "")
        too_old = kind == "tool" and release < _FIRST_WITH_TOOLS
        if kind and (
            too_old or not any(api.entry("parsers", f"{kind}:{name}", number) for name in names)
        ):
            yield f"it has no {kind} parser {' or '.join(names)}"
    if set(needs.engine.get("generation", ())) == {"V1"} and release < _FIRST_WITH_V1:
        yield "it has no V1 engine"
    options = needs.engine.get("extra", ())
    for name in options[0] if options else ():
        option = f"--{name.replace('_', '-')}"
        if api.table("options").get(option) and api.entry("options", option, number) is None:
            yield f"it has no {option}"
    environments = needs.engine.get("env", ())
    for name in environments[0] if environments else ():
        known = api.table("environment").get(name)
        if known and name not in _COMMON and api.entry("environment", name, number) is None:
            yield f"it has no {name}"
