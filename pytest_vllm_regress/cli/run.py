"""``vllm-regress run``: run cases in their evidence environments, or in named ones.

``ask``: one probe or server, by hand.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ChildError, Unsupported, UsageError
from .context import (
    HELP,
    UNEXPECTED,
    CaseIds,
    Device,
    GpusEach,
    Jobs,
    On,
    Results,
    Shard,
    Source,
    WheelIndex,
    Yes,
    check_device,
    confirm_downloads,
    end_if_idle,
    invocation,
    make_executor,
    print_json,
    say,
    warn,
)

if TYPE_CHECKING:
    from ..engines.session import Session

ASK_EPILOG = (
    "Exit codes: 0 answered, or else the exit status of the command; 1 vLLM or the probe failed; 2 usage or bad input; "
    "3 the environment could not be built; 130 interrupted."
)
app = typer.Typer(context_settings=HELP)


@app.command()
def run(
    context: typer.Context,
    case_ids: CaseIds = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|PATH",
            help="Environment or interpreter to use instead of the evidence environments; repeatable.",
        ),
    ] = None,
    all_evidence: Annotated[
        bool,
        typer.Option(
            "--all-evidence", help="Use all evidence environments instead of the first two."
        ),
    ] = False,
    device: Device = None,
    destination: Results = None,
    source: Source = None,
    wheel_index: WheelIndex = None,
    workers: Annotated[
        str | None, typer.Option("-n", metavar="N", help="pytest-xdist workers: a number or auto.")
    ] = None,
    jobs: Jobs = None,
    on: On = None,
    gpus: GpusEach = None,
    shard: Shard = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also print what each test saw, passing tests included."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Run cases in their evidence environments and print a verdict for each. Arguments after -- go
    to pytest.

    Environments run side by side (with -n: one at a time), and one is built while others run. Each
    case that ends is one line. pytest's output is shown of environments in which something is
    unexpected; with `vllm-regress -v run` all of it is. Environments that do not exist yet are
    built; on a terminal you are asked before anything is downloaded. Without --env each case must
    be REPRODUCED in its first affected environment and FIXED in its first fixed one; anything else
    is unexpected.
    """
    from ..output.table import observation_lines, print_to_console
    from ..runner.build import build_with_cache, check_environments
    from ..runner.plan import plan_batches
    from ..runner.result_files import check_destination, rescue_to, save_results
    from ..runner.run import LocalMachine, RunRequest, batch_progress, local_request, run_batches
    from ..runner.shards import take_shard
    from ..runner.slots import Spare, machine_room
    from ..util.paths import writable_root
    from ..util.signals import terminate_as_interrupt

    _check_run(env, all_evidence, device, workers, on)
    shared = invocation(context)
    cases = shared.select(case_ids or [])
    batches = take_shard(plan_batches(cases, env or [], all_evidence=all_evidence), shard)
    end_if_idle(batches, shard, destination)
    check_destination(destination)
    executor = make_executor(on, gpus, jobs, say)
    options = shared.run_options(device, workers)
    if on is None:
        check_environments(batches, gpu=options.asks_for_gpu)
        confirm_downloads([batch.environment for batch in batches], yes=yes)
    if on is None:
        at_once = jobs or (1 if workers else machine_room())
        spare = None if jobs else Spare.of_machine()
        request = local_request(
            batches, LocalMachine(build_with_cache(say), at_once, spare), options, say
        )
    else:
        request = RunRequest(batches, executor, options, batch_progress(options, say))
    rescue = rescue_to(destination, writable_root() / "results", warn)
    with terminate_as_interrupt():
        outcome = run_batches(dataclasses.replace(request, rescue=rescue))
        written = save_results(outcome.run, destination, writable_root() / "results", say)
    if written is not None:
        say(f"results: {written}")
    for line in observation_lines(outcome.run.results) if verbose else ():
        say(line)
    print_to_console(outcome.run)
    if outcome.interrupted:
        warn("interrupted: not everything was run")
    raise typer.Exit(outcome.exit_code)


def _check_run(
    env: list[str] | None,
    all_evidence: bool,
    device: str | None,
    workers: str | None,
    on: str | None,
) -> None:
    if env and all_evidence:
        raise UsageError("--env and --all-evidence contradict each other: give one of them")
    if on and workers:
        raise UsageError(
            "-n and --on contradict each other: the cluster runs environments, one pytest each"
        )
    check_device(device)
    if (
        workers is not None
        and workers not in ("auto", "logical")
        and not (workers.isdecimal() and len(workers) < 5)
    ):
        raise UsageError(f"-n {workers!r}: allowed are a number of workers, auto and logical")


@app.command(epilog=ASK_EPILOG)
def ask(
    context: typer.Context,
    environment: Annotated[
        str, typer.Argument(metavar="NAME|PATH", help="Environment or interpreter.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="Arguments of the probe: JSON, or else text; {model} is the path of the tiny checkpoint.",
        ),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:FUNCTION",
            help="Call this function, or a built-in one (parsers:tool_calls), and print its value.",
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Start a server and run the command after --. {url}, {key} and {model} in its arguments are replaced; "
            "VLLM_REGRESS_URL, VLLM_REGRESS_MODEL, OPENAI_BASE_URL and OPENAI_API_KEY are set.",
        ),
    ] = False,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Field of the server's EngineSpec: JSON, or else text; repeatable.",
        ),
    ] = None,
    show_log: Annotated[
        bool,
        typer.Option(
            "--log", help="With --serve: then print what the server logged, on standard error."
        ),
    ] = False,
    device: Device = None,
    yes: Yes = False,
) -> None:
    """Call a probe function, or send requests to a server, by hand in any environment.

    Examples: ask vllm-0.8.5 --probe probe.py:count n=8; ask vllm-0.8.5 --serve --set tp=2 -- sh -c
    'curl -H "Authorization: Bearer $OPENAI_API_KEY" $OPENAI_BASE_URL/models'
    """
    from ..engines.standalone import bare_session

    command = invocation(context).pytest_args
    if (probe is None) != serve or serve != bool(command):
        raise UsageError(
            "ask: give either --probe FILE:FUNCTION, or --serve and after -- the command to run"
        )
    if show_log and not serve:
        raise UsageError("ask: --log prints what a server logged: it needs --serve")
    check_device(device)
    confirm_downloads(
        [environment], yes=yes, show=warn
    )  # standard output is the command's, or JSON
    try:
        with bare_session(warn, device=device or "auto") as session:
            if probe is not None:
                print_json(_probed(session, environment, probe, _values(arguments or ())))
            else:
                raise typer.Exit(
                    _served(session, environment, _values(fields or ()), command, show_log)
                )
    except (ChildError, Unsupported) as error:
        warn(f"vllm-regress: {error}")
        raise typer.Exit(UNEXPECTED) from None


def _probed(session: Session, environment: str, probe: str, arguments: dict[str, Any]) -> Any:
    from ..engines.standalone import probe_in

    file, _, function = probe.rpartition(":")
    in_file = file.endswith(".py")
    if in_file and not Path(file).is_file():
        raise UsageError(f"--probe {probe}: there is no file {file}")
    target = session.target(environment)
    paths = {
        name: session.model_path("text", target.device)
        for name, value in arguments.items()
        if value == "{model}"
    }
    return probe_in(session, target, Path(file).resolve())(
        function if in_file else probe, **{**arguments, **paths}
    )


def _served(
    session: Session,
    environment: str,
    fields: dict[str, Any],
    command: Sequence[str],
    show_log: bool,
) -> int:
    from ..engines.spec import EngineSpec
    from ..engines.standalone import run_client

    spec = EngineSpec.create(**fields).relative_to(Path.cwd())
    server = session.server(session.target(environment), spec, user="ask", fresh=False)
    status = run_client(server, command)
    if show_log:
        warn(server.log())
    return status


def _values(words: Sequence[str]) -> dict[str, Any]:
    """Parse words ``NAME=VALUE``. A value that is not JSON is text."""
    values = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise UsageError(f"{word!r}: write NAME=VALUE")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values
