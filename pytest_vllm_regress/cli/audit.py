"""``vllm-regress audit``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..answers.audit import audit as answers
from ..answers.audit.audit import Audit
from ..answers.audit.matching import (
    NO_VLLM,
    AuditMatch,
    Inventory,
    require_checkable,
    severity,
)
from ..answers.audit.target import (
    built_in_locks,
    ends_of_range,
    read_interpreter,
    read_side,
    read_target,
)
from ..answers.audit.upgrades import overview, table
from ..answers.fixes.index import fix_index
from ..answers.fixes.overview import concerned, counts, vllm_version
from ..cases.model import Case
from ..errors import UsageError
from ..util.validation import format_value
from ..util.versions import specifiers_of
from .context import (
    OK,
    UNEXPECTED,
    Invocation,
    Names,
    print_json,
    print_text,
    say,
    speaker,
    warn,
)

if TYPE_CHECKING:
    from ..answers.deployments.configuration import Deployment

SCHEMA_VERSION = 1
MAX_LINE = 100
"""Characters of a line for one failure."""


def audit(
    command: Invocation,
    targets: Names = None,
    environments: Names = None,
    releases: str | None = None,
    serve: str | None = None,
    preflight: bool = False,
    ignore: Names = None,
    format: Literal["text", "json", "sarif"] = "text",
) -> int:
    """Find the documented failures of a combination of versions.

    Reads metadata and lists; imports and runs nothing. With --env PATH the interpreter is started,
    but only to ask for its path; with --env NAME the lock of that environment is read. -v prints
    everything about each failure instead of one line. A list without vLLM is an error, unless
    --ignore names no-vllm.

    Exit codes: 0 nothing found (with --serve: nothing that can show); 1 something found; 2 usage or
    bad input; 4 internal error.
    """

    cases = command.cases()
    if releases is not None:
        if targets or environments or preflight or ignore or serve or format == "sarif":
            raise UsageError(
                "--releases summarizes releases: the only other option it takes is --format json"
            )
        _print_releases(cases, releases, as_json=format == "json")
        return OK
    ignored = set(ignore or ())
    answers.check_ignored(ignored, cases)
    host = None
    if preflight:
        # What reads GPUs is imported only for this.
        from ..answers.audit.preflight import inspect_host

        host = inspect_host()
    deployments: tuple[Deployment, ...] = ()
    if serve is not None:
        from ..answers.deployments.configuration import read_deployments

        deployments = read_deployments(serve)
    inventories = [
        part
        for inventory in (
            *map(read_target, targets or ()),
            *(_environment(name, cases) for name in environments or ()),
        )
        for part in ends_of_range(inventory)
    ]
    if inventories and NO_VLLM not in ignored:
        require_checkable(inventories, cases)
    pairs = [(inventory, deployments) for inventory in inventories]
    pairs = pairs or list(_named_by(deployments)) or [(_own(serve, cases), deployments)]
    audits = [answers.audit(entry, cases, host, ignored, places) for entry, places in pairs]
    if format == "sarif":
        from ..answers.audit.audit import to_sarif

        print_json(to_sarif(audits))
    elif format == "json":
        print_json({"schema": SCHEMA_VERSION, "targets": [result.to_json() for result in audits]})
    else:
        for (inventory, places), result in zip(pairs, audits, strict=True):
            _print(result, command.verbose)
            _print_fixes(inventory, places, all_of_them=command.verbose)
    speaker(format)(f"cases: {command.database()}")
    for note in dict.fromkeys(note for result in audits for note in result.notes):
        warn(f"note: {note}")
    return OK if all(result.clean for result in audits) else UNEXPECTED


def _print_fixes(
    inventory: Inventory, deployments: Sequence[Deployment], *, all_of_them: bool
) -> None:
    """Print how many later fixes touch what the deployments use, or all of them."""
    version = vllm_version(inventory.versions)
    if version is None or not deployments:
        return
    options = {name: value for entry in deployments for name, value in entry.options.items()}
    index = fix_index()
    groups = concerned(index, version, options)
    total = sum(len(group) for _, group in groups)
    hint = "" if all_of_them or not total else "; list them: -v"
    named = f" ({counts(groups)}; not proven here{hint})" if total else ""
    say(f"\n{total} later fixes of upstream touch what this deployment uses{named}")
    if all_of_them:
        for _, group in groups:
            say(
                *(
                    f"  {fix.name}  {index.first_release(fix) or 'unreleased'}  {fix.title}"
                    for fix in group
                )
            )


def _named_by(
    deployments: tuple[Deployment, ...],
) -> Iterator[tuple[Inventory, tuple[Deployment, ...]]]:
    """Yield the releases that deployments name, each with the deployments that it is in: those that
    name no release are in all."""
    named = {(place.distribution, place.release): None for place in deployments if place.release}
    for distribution, release in named:
        places = tuple(
            place
            for place in deployments
            if not place.release or (place.distribution, place.release) == (distribution, release)
        )
        inventory = read_target(f"{distribution}=={release}")
        source = f"{inventory.source} (named by {places[0].source.partition(' (')[0]})"
        yield replace(inventory, source=source), places


def _own(serve: str | None, cases: tuple[Case, ...]) -> Inventory:
    try:
        return read_interpreter(Path(sys.executable), cases)
    except UsageError:
        if serve is None:
            raise
        raise UsageError(
            f"--serve {format_value(serve)}: names no version of vLLM (an image's tag, or a requirement with ==), and this "
            "interpreter has none. Name one before --serve, such as vllm==0.11.0"
        ) from None


def _environment(name: str, cases: tuple[Case, ...]) -> Inventory:
    from ..environments.sources import names_interpreter

    # Only a path with a slash is started: the audited project may have a file with the name of an
    # environment.
    if names_interpreter(name):
        return read_interpreter(Path(name), cases)
    return read_side(name)


def _print_releases(cases: tuple[Case, ...], releases: str, *, as_json: bool) -> None:

    specifiers = specifiers_of(releases)
    if specifiers is None:
        raise UsageError(
            f"--releases {format_value(releases)}: not a PEP 440 specifier; allowed is for "
            "example '>=0.8,<0.12'"
        )
    summary = overview(cases, built_in_locks())
    chosen = [entry for entry in summary if specifiers.contains(entry.version)]
    if as_json:
        print_json({"schema": SCHEMA_VERSION, "releases": [entry.to_json() for entry in chosen]})
    else:
        say(table(chosen))


def _print(result: Audit, verbose: bool) -> None:
    """Print a line for each failure, below the reason why the deployment can or cannot show it, or
    all about each."""
    groups: dict[str, list[AuditMatch]] = {}
    for finding in result.findings:
        relevance = result.relevance.get(finding.case.id)
        heading = f"{relevance.reach}: {relevance.reason}" if relevance else ""
        groups.setdefault(heading, []).append(finding)
    print_text(
        "audit.txt",
        audit=result,
        versions=", ".join(f"{name} {version}" for name, version in result.versions.items()),
        groups=groups,
        width=max((len(finding.case.id) for finding in result.findings), default=0),
        verbose=verbose,
        severity=severity,
        cut=_cut,
    )


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 3].rstrip()}..."
