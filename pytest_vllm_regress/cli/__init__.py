"""The command ``vllm-regress``. Commands here parse and delegate; what they need is imported when they run."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from .. import __version__
from ..errors import BuildError, RegressError, UsageError
from .context import (
    DEVICES,
    HELP,
    INTERNAL,
    INTERRUPTED,
    OK,
    UNBUILT,
    USAGE,
    AsJson,
    Invocation,
    check_device,
    invocation,
    print_columns,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..cases.model import Case

MODULES = {
    "audit": "audit",
    "bisect": "bisect",
    "conformance": "conformance",
    "doctor": "doctor",
    "env": "environments",
    "fuzz": "fuzz",
    "matrix": "matrix",
    "replay": "replay",
    "report": "report",
    "validate": "validate",
}
"""Commands with a module of their own: each has a typer application ``app``."""
RUNNING_PYTEST = frozenset({"bisect", "conformance", "matrix", "run", "validate"})
"""Commands whose arguments after ``--`` are pytest's."""
EPILOG = (
    "Exit codes: 0 all verdicts as expected; 1 some verdict is not expected; 2 usage or bad input; "
    "3 an environment could not be built; 4 internal error; 130 interrupted."
)


class LazyCommands(typer.core.TyperGroup):
    """The commands of this module, and those of ``MODULES``, whose module is imported when its command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*super().list_commands(ctx), *MODULES})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in MODULES:
            module = importlib.import_module(f".{MODULES[cmd_name]}", __name__)
            command = typer.main.get_command(module.app)
            command.name = cmd_name
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="vllm-regress",
    help="Documented vLLM failures: which ones does an installation have, and since when, until when?",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP,
    cls=LazyCommands,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code (see ``EPILOG``)."""
    ours, pytest_args = _split(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=ours, prog_name="vllm-regress", obj=pytest_args)
    except SystemExit as ended:
        return _status(ended.code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except RegressError as error:
        print(f"vllm-regress: {error}", file=sys.stderr)
        return UNBUILT if isinstance(error, BuildError) else USAGE if isinstance(error, UsageError) else INTERNAL
    except Exception:
        traceback.print_exc()
        print(f"vllm-regress {__version__}: internal error; please report it with the lines above", file=sys.stderr)
        return INTERNAL
    return OK


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vllm-regress {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", metavar="DIR", help="Directory of cases (default: ./cases, else the built-in ones)."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    context.obj = Invocation(cases, tuple(context.obj or ()))


@app.command("list")
def list_cases(context: typer.Context, as_json: AsJson = False) -> None:
    """List the cases: id, family, affected versions, title."""
    cases = invocation(context).cases()
    if as_json:
        print_json([_as_json(case) for case in cases])
        return
    print_columns(("id", "family", "affected", "title"), [(c.id, c.family, c.affected_text(), c.title) for c in cases])


@app.command()
def show(
    context: typer.Context,
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="The case's id.")],
    as_json: AsJson = False,
) -> None:
    """Show everything that is known about one case."""
    from ..cases.model import select

    (case,) = select(invocation(context).cases(), [case_id])
    if as_json:
        print_json(_as_json(case))
        return
    for name, value in _as_json(case).items():
        if value not in (None, "", [], {}, False):
            print(f"{name + ':':14}{_one_line(value)}")


@app.command()
def run(
    context: typer.Context,
    case_ids: Annotated[list[str] | None, typer.Argument(metavar="CASE", help="Ids of cases (default: all).")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATH",
            help="Environment or interpreter to use instead of the evidence environments; repeatable.",
        ),
    ] = None,
    all_evidence: Annotated[
        bool, typer.Option("--all-evidence", help="All evidence environments, not the first two.")
    ] = False,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help=f"One of {', '.join(DEVICES)}.")] = None,
    destination: Annotated[
        Path | None, typer.Option("--results", metavar="DIR|FILE.json", help="Write the results there as JSON.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option("-n", metavar="N", help="pytest-xdist workers: a number or auto.")
    ] = None,
) -> None:
    """Run cases in their evidence environments and print a verdict for each. Arguments after -- go to pytest.

    Builds environments that are not there yet. Without --env each case must be REPRODUCED in its first affected
    environment and FIXED in its first fixed one; anything else is not expected.
    """
    from ..cases.model import select
    from ..reporting.table import print_to_console
    from ..runner import runner as runs
    from ..util.paths import cache_root

    _check_run(env, all_evidence, device, workers)
    ours = invocation(context)
    jobs = runs.plan(select(ours.cases(), case_ids or []), env or [], all_evidence=all_evidence)
    runs.check_environments(jobs)
    options = runs.Options(device, workers, ours.pytest_args)
    with runs.terminate_as_interrupt():
        outcome = runs.Runner(runs.build_with_cache(say), options, say).run(jobs)
    written = runs.keep(outcome.run, destination, cache_root() / "results", say)
    print_to_console(outcome.run)
    if written is not None:
        say(f"results: {written}")
    if outcome.interrupted:
        print("interrupted: not everything was run", file=sys.stderr)
    raise typer.Exit(outcome.exit_code)


@app.command()
def new(
    context: typer.Context,
    upstream: Annotated[str | None, typer.Argument(metavar="[URL|OWNER/NAME#N|N]", help="The upstream report.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="URL|OWNER/NAME#N|N", help="The same, as an option.")
    ] = None,
    finding: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A finding of `vllm-regress fuzz`; a report is not needed then.")
    ] = None,
    front: Annotated[
        str, typer.Option(help="What the test starts: offline, async or serve (an engine), probe or finding (none).")
    ] = "offline",
    title: Annotated[str | None, typer.Option(help="The failure in a few words.")] = None,
    family: Annotated[str, typer.Option(help="The kind of defect, for grouping.")] = "wrong-result",
    package: Annotated[
        str | None, typer.Option(help="The distribution that has the failure (default: the repository's name).")
    ] = None,
    affected: Annotated[
        str, typer.Option(metavar="SPECIFIER", help="Its affected versions, for example '>=0.7,<0.8.5'.")
    ] = ">=0",
    kind: Annotated[str, typer.Option(help="exception, hang, crash or wrong-result.")] = "wrong-result",
    phase: Annotated[str, typer.Option(help="import, start, ready, request, stop or probe.")] = "request",
    pattern: Annotated[
        str, typer.Option(metavar="REGEX", help="What the failure's text looks like.")
    ] = "expected .+, got .+",
    affected_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Environment that shows it; repeatable.")
    ] = None,
    fixed_env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Environment that does not; repeatable.")
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE", help="How the control leg differs (needed for hang and crash); repeatable."
        ),
    ] = None,
) -> None:
    """Write the directory of a new case: case.toml, a test that runs, and a README."""
    from ..cases.scaffold import TESTS, Draft, NotReported, Upstream, create

    if finding is None and (upstream is None) == (from_ is None):
        raise UsageError("new: give the upstream report once, as an address, owner/name#number or a number")
    if front not in TESTS:
        raise UsageError(f"--front {front!r}: allowed are {', '.join(TESTS)}")

    fields = dict(map(_control_field, control or []))
    draft = Draft(
        title,
        family,
        package,
        affected,
        kind,
        phase,
        pattern,
        tuple(affected_env or ()),
        tuple(fixed_env or ()),
        fields,
        front,
    )
    report: Upstream | NotReported
    if finding is not None:
        from ..fuzz.artefact import load
        from ..fuzz.draft import TRACKERS, draft_of

        found = load(finding)
        draft = draft_of(found, draft)
        named = upstream or from_ or found.upstream
        report = Upstream.parse(named) if named else NotReported(Path(found.name).stem, TRACKERS[found.backend])
    else:
        report = Upstream.parse(upstream or from_ or "")
    case = create(invocation(context).cases_dir or Path("cases"), report, draft)
    for path in sorted(case.directory.iterdir()):
        print(path)
    if not case.evidence.affected:
        warn(f"Next: name an environment that shows the failure under [evidence] in {case.path}")
    warn(f"Next: write the test, then prove the case: vllm-regress validate {case.id}")


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Ours and pytest's: what stands before and after the first ``--``, in commands that run pytest."""
    given = list(arguments)
    at = given.index("--") if "--" in given else len(given)
    if RUNNING_PYTEST.isdisjoint(given[:at]):
        return given, ()
    return given[:at], tuple(given[at + 1 :])


def _check_run(env: list[str] | None, all_evidence: bool, device: str | None, workers: str | None) -> None:
    if env and all_evidence:
        raise UsageError("--env and --all-evidence contradict each other: give one of them")
    check_device(device)
    if workers is not None and workers not in ("auto", "logical") and not (workers.isdecimal() and len(workers) < 5):
        raise UsageError(f"-n {workers!r}: allowed are a number of workers, auto and logical")


def _control_field(text: str) -> tuple[str, str | int | bool]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(f"--control {text!r}: allowed is FIELD=VALUE, for example tokenizer_pool_size=0")
    if value in ("true", "false"):
        return name, value == "true"
    with contextlib.suppress(ValueError):
        return name, int(value)
    return name, value


def _as_json(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "title": case.title,
        "family": case.family,
        "affected": {each.package: each.specifier for each in case.affected},
        "first_fixed": case.first_fixed(),
        "since": case.since,
        "upstream": list(case.upstream),
        "fixed_by": list(case.fixed_by),
        "devices": list(case.devices),
        "symptom": {"kind": case.symptom.kind, "phases": list(case.symptom.phases), "pattern": case.symptom.pattern},
        "variants": {
            name: {
                "affected": False if each.never else {r.package: r.specifier for r in each.ranges},
                "reason": each.reason,
            }
            for name, each in case.variants.items()
        },
        "control": dict(case.control),
        "evidence": {"affected": list(case.evidence.affected), "fixed": list(case.evidence.fixed)},
        "workaround": case.workaround,
        "racy": case.racy,
        "notes": case.notes,
        "path": str(case.path),
    }


def _one_line(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {_one_line(each)}".strip() for key, each in value.items() if each not in ("", []))
    if isinstance(value, list):
        return ", ".join(map(_one_line, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _status(code: object) -> int:
    return code if isinstance(code, int) else OK if code is None else USAGE


if __name__ == "__main__":
    sys.exit(main())
