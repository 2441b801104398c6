"""``vllm-regress survey upstream``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...engines.standalone import bare_session
from ...environments.git import Repository
from ...errors import UsageError
from ...surveys.upstream.tests import RunLimits, UpstreamRequest, run_tests
from ...surveys.upstream.tree import write_tree
from ...surveys.upstream.triage import UpstreamOutcome, counts, listed_tests
from ...util import codec
from ...util.rundir import scratch
from ..context import OK, UNEXPECTED, Environment, invocation, print_columns, say, warn

EPILOG = (
    "Exit codes: 0 no test failed; 1 a test failed; 2 usage or bad input; 3 something could "
    "not be built; 4 internal error."
)


def upstream(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Tests, from the root of vLLM's sources: tests/entrypoints/openai.",
        ),
    ],
    ref: Annotated[str, typer.Option(metavar="REV", help="The revision whose tests are run.")],
    env: Environment,
    replaced: Annotated[
        str,
        typer.Option(
            "--replace",
            metavar="CLASSES",
            help="Which classes ours replace: server, runner, server,runner or none.",
        ),
    ] = "server",
    test_timeout: Annotated[float, typer.Option(metavar="S", min=1, help="For each test.")] = 300.0,
    run_timeout: Annotated[
        float | None, typer.Option(metavar="S", min=1, help="For the whole run.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for results.json, pytest.log and the dossiers of servers that do not start.",
        ),
    ] = Path("vllm-regress-upstream"),
) -> None:
    """Run vLLM's own tests on the simulated device.

    They are not modified. Arguments after -- go to pytest.
    """
    classes = tuple(name for name in replaced.split(",") if name != "none")
    if wrong := set(classes) - {"server", "runner"}:
        raise UsageError(
            f"--replace {', '.join(sorted(wrong))}: "
            "allowed is server, runner, server,runner or none"
        )
    sources = invocation(context).sources
    if len(sources) != 1:
        raise UsageError("upstream: give the clone of vLLM's sources as --source PATH")
    repository = Repository.at(Path(sources[0]))
    out.mkdir(parents=True, exist_ok=True)
    with bare_session(warn, device="sim") as session, scratch() as folder:
        target = session.target(env)
        (folder / "tree").mkdir()
        tree = write_tree(repository, ref, folder / "tree")
        files = tree.select(paths)
        request = UpstreamRequest(
            tree,
            files,
            target,
            out / "dossiers",
            classes,
            RunLimits(test_timeout, run_s=run_timeout),
            invocation(context).pytest_args,
            listed_tests(files),
        )
        done = run_tests(request, out / "pytest.log", warn)
    for line in done.lines():
        say(line)
    number = counts(done.results)
    rows = [(outcome, str(number[outcome])) for outcome in UpstreamOutcome if number[outcome]]
    print_columns(("outcome", "tests"), rows)
    codec.save(out / "results.json", done.to_json(target.versions["vllm"], tree.commit.id))
    raise typer.Exit(UNEXPECTED if number[UpstreamOutcome.FAILED] else OK)
