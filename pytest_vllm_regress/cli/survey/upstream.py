"""``vllm-regress survey upstream``."""

from __future__ import annotations

import math
from pathlib import Path

from ...engines.standalone import bare_session
from ...environments.git import Repository
from ...errors import UsageError
from ...surveys.upstream.tests import (
    RunLimits,
    UpstreamOutcome,
    UpstreamRequest,
    counts,
    listed_tests,
    run_tests,
)
from ...surveys.upstream.tree import write_tree
from ...util import codec
from ...util.rundir import scratch
from ..context import OK, UNEXPECTED, Invocation, Names, limits, print_columns, say, warn


def upstream(
    command: Invocation,
    paths: list[str],
    ref: str,
    env: str,
    replace: str = "server",
    limit: Names = None,
    out: Path = Path("vllm-regress-upstream"),
) -> int:
    """Run vLLM's own tests on the simulated device.

    They are not modified. Arguments after -- go to pytest.

    Exit codes: 0 no test failed; 1 a test failed; 2 usage or bad input; 3 something could not be
    built; 4 internal error.
    """
    classes = tuple(name for name in replace.split(",") if name != "none")
    if wrong := set(classes) - {"server", "runner"}:
        raise UsageError(
            f"--replace {', '.join(sorted(wrong))}: "
            "allowed is server, runner, server,runner or none"
        )
    most = limits(limit, test=300, run=math.inf)
    if len(command.sources) != 1:
        raise UsageError("upstream: give the clone of vLLM's sources as --source PATH")
    repository = Repository.at(Path(command.sources[0]))
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
            RunLimits(most["test"], run_s=most["run"]),
            command.pytest_args,
            listed_tests(files),
        )
        done = run_tests(request, out / "pytest.log", warn)
    say(*done.lines())
    number = counts(done.results)
    rows = [(outcome, str(number[outcome])) for outcome in UpstreamOutcome if number[outcome]]
    print_columns(("outcome", "tests"), rows)
    codec.save(out / "results.json", done.to_json(target.versions["vllm"], tree.commit.id))
    return UNEXPECTED if number[UpstreamOutcome.FAILED] else OK
