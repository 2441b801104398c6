"""``vllm-regress try``: what a patch mends, breaks and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..bisection.patch import Effect, base_of, changed_files, effects, nearest_first
from ..cases.model import select
from ..environments.names import resolve
from ..environments.sources import find, parse_name, use
from ..errors import UsageError
from ..runner import runner as runs
from ..runner.carrier import LocalThreads
from ..runner.journal import Journal
from ..runner.matrix import Matrix
from ..runner.slots import machine_room
from ..util.paths import cache_root
from ..util.signals import terminate_as_interrupt
from .context import HELP, OK, UNEXPECTED, CaseIds, Jobs, Results, invocation, print_columns, print_json, say, warn

app = typer.Typer(context_settings=HELP)


@app.command("try")
def try_patch(
    context: typer.Context,
    tree: Annotated[Path, typer.Argument(metavar="PATH", help="A work tree of vLLM, as it stands.")],
    case_ids: CaseIds = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV", help="What to compare with (default: where the branch left upstream's, else HEAD)."
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment that both are laid over (default: what fits best)."),
    ] = None,
    jobs: Jobs = None,
    destination: Results = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON, and nothing else on standard output.")
    ] = False,
) -> None:
    """Run all (or named) cases on a work tree and on its base, each once, on the simulated device; say what the patch mends, breaks and leaves.

    Without cases named, those come first whose fix or texts have to do with the changed modules. Arguments after -- go to pytest. Exit codes: 0 the
    patch breaks nothing; 1 it breaks something; 2 usage; 3 an environment could not be built; 130 interrupted (the same command goes on).
    """
    tell = warn if as_json else say
    ours = invocation(context)
    named = parse_name(f"vllm@{tree.expanduser().absolute()}")
    assert named is not None
    source = find(named)
    use([str(source.tree)])  # the base is a commit of the tree's own repository
    base = base_of(source, against)
    changed = changed_files(source, base)
    if not changed:
        raise UsageError(
            f"{tree}: its vllm/ is that of {base.id[:10]}: nothing to try. Give what to compare with: --against REV"
        )
    cases = select(ours.cases(), case_ids or [])
    if not case_ids:
        cases = nearest_first(cases, changed, source.repository)
    below = env or _fitting(base.id)
    sides = (f"{below}+vllm@{base.id}", f"{below}+vllm@{source.tree}")
    planned = [runs.Job(name, cases, {}) for name in sides]
    keys = [overlay.source.key for name in sides if (overlay := resolve(name).overlay)]
    tell(f"{len(changed)} changed files against {base.id[:10]} ({base.subject}); {len(cases)} cases, over {below}")
    journal = Journal(cache_root() / "try", [*keys, below, *(case.id for case in cases), *ours.pytest_args])
    options = runs.Options(None, None, ours.pytest_args, ours.cases_dir)
    with terminate_as_interrupt():
        carrier = LocalThreads(runs.build_with_cache(tell), jobs or machine_room(), tell)
        outcome = Matrix(carrier, options, journal, tell).run(planned)
    written = runs.keep(outcome.run, destination, cache_root() / "results", tell)
    if written is not None:
        tell(f"results: {written}")
    if outcome.interrupted:
        warn("interrupted: the same command goes on from here")
        raise typer.Exit(outcome.exit_code)
    journal.close()
    before, after = ([r for r in outcome.run.results if r.environment == resolve(name).name] for name in sides)
    found = effects(cases, before, after)
    if as_json:
        print_json(
            [
                {"case": e.case.id, **{k: getattr(e, k) for k in ("effect", "before", "after", "tests", "why")}}
                for e in found
            ]
        )
    else:
        rows = [
            (each.effect, each.case.id, each.before, each.after)
            for each in sorted(found, key=lambda e: [*Effect].index(e.effect))
        ]
        print_columns(("the patch", "case", f"at {base.id[:10]}", "with the patch"), rows)
        for each in found:
            if each.effect is not Effect.LEFT:
                say(
                    f"{each.effect} {each.case.id}: {', '.join(each.tests) or 'no test gave a clear verdict'}: {each.why}"
                )
    if outcome.unbuilt:
        raise typer.Exit(outcome.exit_code)
    raise typer.Exit(UNEXPECTED if any(each.effect is Effect.BROKEN for each in found) else OK)


def _fitting(commit: str) -> str:
    """The release that both sides are laid over: the one that fits the base."""
    overlay = resolve(f"vllm@{commit}").overlay
    assert overlay is not None
    return overlay.base.name
