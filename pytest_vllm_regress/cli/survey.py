"""``vllm-regress survey``: measure what releases of vLLM can do, survive, and need.

Each command keeps its results in the cache until everything is measured: an interrupted command is
repeated to resume it.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from ..engines.standalone import bare_session
from ..environments.names import resolve
from ..environments.releases import releases_in
from ..environments.sources import PROJECTS, clone_of, find_clone, parse_name
from ..errors import BuildError, UsageError
from ..runner.batch import digest
from ..runner.executors import build_with_cache
from ..surveys import conformance as suites
from ..surveys import drift_record
from ..surveys.drift import DatedRelease, diagnose, limited_downloads
from ..surveys.states import measure
from ..surveys.upstream.tests import (
    RunLimits,
    UpstreamOutcome,
    UpstreamRequest,
    counts,
    listed_tests,
    run_tests,
)
from ..surveys.upstream.tree import write_tree
from ..util import codec
from ..util.paths import writable_root
from ..util.rundir import scratch
from ..util.store import Store
from ..util.versions import is_version, version_of
from .context import (
    OK,
    UNBUILT,
    UNEXPECTED,
    Format,
    Invocation,
    Names,
    disk_limit,
    limits,
    print_columns,
    print_report,
    say,
    warn,
)

T = TypeVar("T")


@contextlib.contextmanager
def resumed(
    opened: Callable[..., Store[T]], command: Collection[str], *, fresh: bool
) -> Iterator[Store[T]]:
    """Return what the same command has measured so far. ``command``: what tells it from others."""
    name = f"{opened.__name__}-{digest(*command)[:16]}.jsonl"
    with contextlib.closing(opened(Path(writable_root(), "surveys", name), fresh=fresh)) as store:
        store.lock()
        yield store


def conformance(
    command: Invocation, environments: list[str], fresh: bool = False, format: Format = "text"
) -> int:
    """Run the conformance suite: which features work.

    Each check runs on each engine generation. Arguments after -- go to pytest: `-- -m smoke`, or
    `-- -k EXPRESSION` for some of the checks. Each check is kept when it has ended.

    Exit codes: 0 a known upstream failure explains every failed check; 1 otherwise; 2 usage; 3 an
    environment could not be built; 130 interrupted.
    """
    suite = suites.suite_directory()
    known = suites.read_known(suite / "known.toml")
    selection, names = command.pytest_args, list(dict.fromkeys(environments))
    say_bases(names)
    command.confirm_downloads(names, warn)
    with resumed(suites.open_runs, [*names, *selection], fresh=fresh) as runs:
        measured = {ran.environment for ran in runs.entries.values()}
        unbuilt = False
        for name in names:
            if name in measured:
                warn(f"{name}: measured by an earlier run of the same command")
                continue
            try:
                build_with_cache(warn)(name)
            except BuildError as error:
                warn(f"{name}: {error}")
                unbuilt = True
                continue
            record = Path(writable_root(), "surveys", f"checks-{digest(name, *selection)}.jsonl")
            if fresh:
                record.unlink(missing_ok=True)
            ran = suites.run_suite(name, suite, selection, record=record)
            runs.add(ran.name, ran)
            record.unlink(missing_ok=True)
        results = list(runs.entries.values())
        if not unbuilt:
            runs.remove()
    print_report(format, suites.report(results, known), [ran.to_json() for ran in results])
    return UNBUILT if unbuilt else UNEXPECTED if suites.unexplained(results, known) else OK


def say_bases(names: Sequence[str]) -> None:
    """Say over which environment each source is laid, before anything is built."""
    for name in names:
        source = parse_name(name)
        overlay = None if source is None else resolve(name).overlay
        if source is not None and overlay is not None and not source.base:
            warn(f"{name}: over {overlay.base.name}; over another one: BASE+{name}")


def states(
    command: Invocation,
    environments: list[str],
    only: Names = None,
    fresh: bool = False,
    format: Format = "text",
) -> int:
    """Measure health, shutdown and growth of servers.

    What the health addresses say while the engine works, sleeps, hangs or is dead, how servers end,
    and how their memory grows. Servers run on the simulated device.

    Exit codes: 0 everything was measured; 1 some rows could not be measured; 2 usage; 3 an
    environment could not be built; 130 interrupted.
    """
    tables = only or list(measure.TABLES)
    if unknown := [table for table in tables if table not in measure.TABLES]:
        raise UsageError(f"--only {unknown[0]}: allowed are {', '.join(measure.TABLES)}")
    names = list(dict.fromkeys(environments))
    command.confirm_downloads(names, warn)
    with resumed(measure.open_states, [*names, *tables], fresh=fresh) as releases:
        for name in names:
            for release in measure.measure_environment(
                name, releases.entries.get(name), tables, warn
            ):
                releases.add(name, release)
        results = dict(releases.entries)
        complete = results.keys() == {*names} and not any(
            release.missing(tables) for release in results.values()
        )
        if complete:
            releases.remove()
    print_report(format, measure.report(list(results.values()), tables), results)
    return OK if complete else UNEXPECTED


def drift(
    releases: list[str],
    python: str = "3.11",
    disk: str | None = None,
    fresh: bool = False,
    format: Format = "text",
) -> int:
    """Try whether releases still install and start today.

    A release is installed with the newest packages that its requirements allow today. Where it does
    not start or answer, the dependency to blame is searched among those that are newer than on the
    day after the release, its first bad version is bisected, and the pin that restores the release
    is confirmed by one more installation. Nothing but vLLM's own requirements is used: no lock, and
    no rule of environments.toml. The server runs on the simulated device.

    Exit codes: 0 every release installs, starts and answers; 1 some do not; 2 usage; 3 the package
    index cannot be asked; 130 interrupted.
    """
    if not re.fullmatch(r"3\.([89]|\d\d)", python):
        raise UsageError(f"--python {python!r}: allowed is a minor version of Python, such as 3.11")
    chosen = chosen_releases(releases)
    today = datetime.datetime.now(datetime.UTC).date()
    limited: contextlib.AbstractContextManager[Callable[[], None]]
    limited = contextlib.nullcontext(lambda: None)
    if disk or len(chosen) > 1:
        limited = limited_downloads(disk_limit(disk))
    command = [*chosen, python, today.isoformat()]
    with resumed(drift_record.open_drifts, command, fresh=fresh) as drifts, limited as make_room:
        for version in chosen:
            if version not in drifts:
                make_room()
                known = drift_record.known_culprits(drifts.entries.values())
                drifts.add(version, diagnose(DatedRelease(version, today, python), warn, known))
        results = dict(drifts.entries)
        drifts.remove()
    print_report(format, drift_record.report(results.values()), results)
    for drift in results.values() if format == "text" else ():
        if drift.confirmed:
            say(f"this works (installed and started): {drift.command}")
    return OK if all(drift.sound for drift in results.values()) else UNEXPECTED


def chosen_releases(ranges: Sequence[str]) -> list[str]:
    """Return the releases to try, newest first, so that consecutive ones share downloads.

    A version means this release, also one that was yanked. Raises ``UsageError``.
    """
    chosen = set()
    for text in ranges:
        version = version_of(text.removeprefix("=="))
        chosen |= set(releases_in("vllm", text)) if version is None else {version}
    return [str(version) for version in sorted(chosen, reverse=True)]


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

    They are not modified. Those of a release (--ref v0.33.0) that the clone does not have come
    from its source distribution. Arguments after -- go to pytest. Each result is kept when its
    test has ended: the same command goes on where an interrupted one was.

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
    release = ref[1:] if ref.startswith("v") and is_version(ref[1:]) else ""
    repository = find_clone(PROJECTS["vllm"]) if release else clone_of(PROJECTS["vllm"])
    say_bases([env])
    command.confirm_downloads([env], warn)
    out.mkdir(parents=True, exist_ok=True)
    with bare_session(warn, device="sim") as session, scratch() as folder:
        target = session.target(env)
        (folder / "tree").mkdir()
        tree = write_tree(repository, ref, folder / "tree", release=release, say=warn)
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
        key = [tree.revision, target.python, target.versions["vllm"], *classes, *files]
        record = out / f"begun-{digest(*map(str, key), *command.pytest_args)}.jsonl"
        done = run_tests(request, out / "pytest.log", warn, record=record)
    say(*done.lines())
    number = counts(done.results)
    rows = [(outcome, str(number[outcome])) for outcome in UpstreamOutcome if number[outcome]]
    print_columns(("outcome", "tests"), rows)
    codec.save(out / "results.json", done.to_json(target.versions["vllm"], tree.revision))
    if done.ended:
        record.unlink(missing_ok=True)
    return UNEXPECTED if number[UpstreamOutcome.FAILED] else OK


COMMANDS = {
    "conformance": conformance,
    "states": states,
    "drift": drift,
    "upstream": upstream,
}
