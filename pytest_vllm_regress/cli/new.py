"""``vllm-regress new``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from ..errors import Kind, UsageError
from .context import invocation, say, warn

ERROR_STATUS = (
    "`post`, `post_all`, `get` and `client` return an error status, and what the test asserts about it is a wrong-result. Only the other "
    "methods of the server (chat, stream_chat, answers, embed, ...) raise it: an exception, or an engine-death if the engine is dead. For a test "
    "with `post` use --kind wrong-result"
)
FindingFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A finding of `vllm-regress fuzz`; the report is then optional."
    ),
]
Front = Annotated[
    str,
    typer.Option(
        help="What the test starts: an engine (offline, async, serve), or none (probe, finding). Default: offline; probe for a "
        "structured-output package or an environment without vLLM."
    ),
]
Id = Annotated[
    str,
    typer.Option(
        "--id",
        metavar="ID",
        help="Id of the case, for a second failure of one report (default: that of the report).",
    ),
]
Title = Annotated[str | None, typer.Option(help="The failure in a few words.")]
Family = Annotated[
    str | None,
    typer.Option(
        help="Kind of defect, for grouping (default: --kind; dependency for a structured-output package)."
    ),
]
Package = Annotated[
    str | None,
    typer.Option(help="Distribution that has the failure (default: the repository's name)."),
]
Affected = Annotated[
    str,
    typer.Option(metavar="SPECIFIER", help="Affected versions, for example '>=0.7,<0.8.5'."),
]
FailureKind = Annotated[
    str,
    typer.Option(
        help="Kind of failure: wrong-result, exception, hang, crash or engine-death. Decides which controls the test has."
    ),
]
Phase = Annotated[
    str,
    typer.Option(
        help="Phase of the failure: import, start, ready, request, stop or probe (default: by --front). With --front serve, "
        "ready writes a test of a server that does not start, and stop one of signals and exit codes."
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Pattern of the failure's text (default: that of the assertion in the test).",
    ),
]
AffectedEnv = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Environment with the failure; repeatable."),
]
FixedEnv = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Environment without the failure; repeatable."),
]
FixedBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="N|OWNER/NAME#N|HASH|URL",
        help="Pull request or commit that fixed it (fixed-by); repeatable.",
    ),
]
Control = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=VALUE",
        help="Engine argument of the control leg (default: the test omits its trigger); repeatable.",
    ),
]
Omits = Annotated[str, typer.Option(metavar="TEXT", help="What the control leg omits, in words.")]


def new(
    context: typer.Context,
    upstream: Annotated[
        str | None, typer.Argument(metavar="[URL|OWNER/NAME#N|N]", help="The upstream report.")
    ] = None,
    finding: FindingFile = None,
    front: Front = "",
    case_id: Id = "",
    title: Title = None,
    family: Family = None,
    package: Package = None,
    affected: Affected = ">=0",
    kind: FailureKind = "wrong-result",
    phase: Phase = "",
    pattern: Pattern = None,
    affected_env: AffectedEnv = None,
    fixed_env: FixedEnv = None,
    fixed_by: FixedBy = None,
    control: Control = None,
    omits: Omits = "",
) -> None:
    """Write a new case: case.toml, a test that runs, a README."""
    from ..cases.loading import load_valid_cases
    from ..cases.proofs import lint
    from ..cases.scaffold import (
        PLACEHOLDER,
        TEMPLATES,
        Draft,
        GitHubReport,
        Unreported,
        create_case,
    )

    command = invocation(context)
    if finding is None and upstream is None:
        raise UsageError("new: give the upstream report, as a URL, owner/name#number or a number")
    if front and front not in TEMPLATES:
        raise UsageError(f"--front {front!r}: allowed are {', '.join(TEMPLATES)}")
    draft = Draft(
        id=case_id,
        title=title and title.strip(),
        family=family or "",
        package=package,
        affected=affected,
        kind=kind,
        phase=phase,
        pattern=pattern or "",
        affected_env=tuple(affected_env or ()),
        fixed_env=tuple(fixed_env or ()),
        control=dict(map(_control_field, control or [])),
        omits=omits,
        front=front,
        fixed_by=tuple(fixed_by or ()),
    )
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
    case = create_case(command.cases_dir or Path("cases"), report, draft)
    for line in lint.lint_case(case, load_valid_cases(case.directory.parent).cases):
        warn(f"warning: {line}")
    if front == "serve" and Kind.EXCEPTION in case.symptom.kinds:
        warn(f"Note: {ERROR_STATUS}")
    for path in sorted(case.directory.iterdir()):
        say(str(path))
    if case.symptom.pattern == PLACEHOLDER:
        warn(f"Next: set symptom.pattern in {case.path} to a text that only this failure prints")
    if not case.evidence.affected:
        warn(f"Next: name an environment with the failure under [evidence] in {case.path}")
    warn(f"Next: write the test, then prove the case: {command.command('validate', case.id)}")


def _control_field(text: str) -> tuple[str, str | int | bool]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(
            f"--control {text!r}: allowed is FIELD=VALUE, for example tokenizer_pool_size=0"
        )
    if value in ("true", "false"):
        return name, value == "true"
    with contextlib.suppress(ValueError):
        return name, int(value)
    return name, value
