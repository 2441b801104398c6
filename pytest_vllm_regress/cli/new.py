"""``vllm-regress new``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ..answers.fixes.index import fix_index
from ..answers.fixes.new_case import draft_of_fix
from ..cases.loading import load_valid_cases
from ..cases.model import Case
from ..cases.scaffold import (
    PLACEHOLDER,
    TEMPLATES,
    Draft,
    GitHubReport,
    Unreported,
    create_case,
    set_up_folder,
)
from ..errors import Kind, UsageError
from ..util.paths import shipped
from ..util.validation import json_or_text
from .context import Invocation, Names, say, settings, warn, warn_of

ERROR_STATUS = (
    "`post`, `post_all`, `get` and `client` return an error status, and what the test asserts about it is a wrong-result. Only the other "
    "methods of the server (chat, stream_chat, answers, embed, ...) raise it: an exception, or an engine-death if the engine is dead. For a test "
    "with `post` use --kind wrong-result"
)
FIELDS = ("id", "family", "package", "phase", "pattern", "omits")
"""Fields of a case that are set as ``--set FIELD=VALUE``, besides fixed-by and control."""


def new(
    command: Invocation,
    upstream: str | None = None,
    finding: Path | None = None,
    from_fix: str | None = None,
    front: str = "",
    title: str | None = None,
    affected: str = ">=0",
    kind: str = "wrong-result",
    affected_env: Names = None,
    fixed_env: Names = None,
    set: Names = None,
) -> None:
    """Write a new case: case.toml, a test that runs, a README.

    The first case of a new folder also gets the settings that `ruff` and `pytest` need: ruff.toml
    beside it and, outside of a project, pytest.ini with its evidence environments.
    """

    if finding is not None and from_fix is not None:
        raise UsageError("new: give --from or --finding, not both")
    if finding is None and upstream is None and from_fix is None:
        raise UsageError("new: give the upstream report, as a URL, owner/name#number or a number")
    if front and front not in TEMPLATES:
        raise UsageError(f"--front {front!r}: allowed are {', '.join(TEMPLATES)}")
    draft = Draft(
        title=title and title.strip(),
        affected=affected,
        kind=kind,
        affected_env=tuple(affected_env or ()),
        fixed_env=tuple(fixed_env or ()),
        front=front,
    )
    draft = _with_fields(draft, set)
    if from_fix is not None:
        index = fix_index()
        fix = index.find(from_fix)
        draft = draft_of_fix(index, fix, draft)
        upstream = upstream or draft.fixed_by[0]
    report: GitHubReport | Unreported
    if finding is not None:
        from ..fuzz.draft import draft_from_file

        draft, name, tracker, reported = draft_from_file(finding, draft)
        reference = upstream or reported
        report = (
            GitHubReport.parse(reference) if reference else Unreported(Path(name).stem, tracker)
        )
    else:
        report = GitHubReport.parse(upstream or "")
    folder = command.cases_dir or Path("cases")
    is_new = not folder.exists()
    case = create_case(folder, report, draft)
    settings_files = set_up_folder(case) if is_new else []
    own = load_valid_cases(case.directory.parent).cases
    warn_of(case, own)
    for other in {
        one.id: one for one in (*load_valid_cases(shipped("cases")).cases, *own)
    }.values():
        if other.id != case.id and (shared := _reports(case) & _reports(other)):
            numbers = ", ".join(sorted(shared))
            warn(f"Note: {other.id} ({other.title}) is of the same report or fix, {numbers}")
    if front == "serve" and Kind.EXCEPTION in case.symptom.kinds:
        warn(f"Note: {ERROR_STATUS}")
    for path in (*sorted(case.directory.iterdir()), *settings_files):
        say(str(path))
    if not draft.pattern and case.symptom.pattern != PLACEHOLDER:
        warn(
            f"Next: set symptom.pattern in {case.path} to the message of your assertion; now it is that of the template, "
            f"{case.symptom.pattern!r}"
        )
    if case.symptom.pattern == PLACEHOLDER:
        warn(f"Next: set symptom.pattern in {case.path} to a text that only this failure prints")
    if not case.evidence.affected:
        warn(f"Next: name an environment with the failure under [evidence] in {case.path}")
    warn(f"Next: write the test, then prove the case: {command.command('validate', case.id)}")


def _reports(case: Case) -> set[str]:
    """Return the reports and fixes of a case as owner/name#number: GitHub has one number for the
    address of an issue and that of a pull request."""
    addresses = (urlsplit(address).path.split("/") for address in (*case.upstream, *case.fixed_by))
    return {f"{parts[1]}/{parts[2]}#{parts[4]}" for parts in addresses if len(parts) == 5}


def _with_fields(draft: Draft, given: Names) -> Draft:
    """Return the draft with fields set as FIELD=VALUE. Raises ``UsageError``."""
    for field, value in settings(given):
        if not value.strip():
            raise UsageError(f"--set {field}=: the value is empty")
        group, _, argument = field.partition(".")
        if field in FIELDS:
            draft = replace(draft, **{field: value})  # type: ignore[arg-type]  # these are texts
        elif field == "fixed-by":
            draft = replace(draft, fixed_by=(*draft.fixed_by, value))
        elif group == "control" and argument:
            draft = replace(draft, control={**draft.control, argument: json_or_text(value)})
        else:
            raise UsageError(
                f"--set {field}={value}: allowed is FIELD=VALUE, FIELD one of "
                f"{', '.join(FIELDS)}, fixed-by and control.ARGUMENT, for example "
                "control.tokenizer_pool_size=0"
            )
    return draft
