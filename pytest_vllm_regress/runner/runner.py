"""``vllm-regress run``: builds environments, runs cases in each with a pytest of its own, merges what they report."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from ..cases import results
from ..cases.model import Case
from ..cases.proof import AFFECTED, FIXED, WANTED
from ..cases.results import RunResult, TestResult
from ..cases.verdict import Verdict, combine
from ..errors import BuildError, UsageError
from ..util.paths import PACKAGE
from ..util.rundir import scratch

INTERRUPT_GRACE_S = 30.0
TERMINATE_GRACE_S = 10.0
OUTER_TIMEOUT_S = 1800
KEPT_COPIES = 20
_PLUGINS = ("pytest_vllm_regress.plugin", "pytest_timeout", "xdist.plugin", "_hypothesis_pytestplugin")
_FOREIGN = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_TIMEOUT", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER")
_START = "import sys; p = sys.argv.pop(1); p and sys.path.insert(0, p); import pytest; sys.exit(pytest.main())"

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """Cases to run in one environment. ``roles``: the side (affected, fixed) that a case must show there, if any.

    ``part``: which part it is of the environment's cases, where several run side by side. ``workers``: pytest-xdist's, where the options name none.
    """

    environment: str
    cases: tuple[Case, ...]
    roles: Mapping[str, str]
    part: int = 0
    workers: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the other jobs of a run."""
        return self.environment, self.part


@dataclasses.dataclass(frozen=True)
class Options:
    """What is the same for all jobs. ``pytest_args`` come last on pytest's command line."""

    device: str | None = None
    workers: str | None = None
    pytest_args: tuple[str, ...] = ()
    cases_dir: Path | None = None
    """The directory of cases, where the user named one: for commands that repeat a run."""

    def repeat(self, case_id: str, environment: str) -> str:
        """The command that runs one case in one environment again."""
        given = ["--cases", str(self.cases_dir)] if self.cases_dir else []
        device = ["--device", self.device] if self.device else []
        return shlex.join(["vllm-regress", *given, "run", case_id, "--env", environment, *device])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run found, which environments could not be built, and whether it was stopped."""

    run: RunResult
    unbuilt: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 all as expected, 1 not, 3 an environment could not be built, 130 interrupted."""
        if self.interrupted:
            return 130
        if self.unbuilt:
            return 3
        return 0 if self.run.as_expected else 1


def plan(cases: Sequence[Case], environments: Sequence[str] = (), *, all_evidence: bool = False) -> tuple[Job, ...]:
    """Which cases run where: in the named environments, else in the first (or all) of each case's evidence."""
    if environments:
        return tuple(Job(name, tuple(cases), {}) for name in dict.fromkeys(environments))
    bare = [case.id for case in cases if not case.evidence.affected and not case.evidence.fixed]
    if bare:
        raise UsageError(
            f"no evidence environments in {', '.join(bare)}: name one with --env NAME, or in the case file"
        )
    grouped: dict[str, dict[str, tuple[Case, str]]] = {}
    for role in (AFFECTED, FIXED):
        for case in cases:
            listed = case.evidence.affected if role == AFFECTED else case.evidence.fixed
            for name in listed if all_evidence else listed[:1]:
                grouped.setdefault(name, {})[case.id] = (case, role)
    return tuple(
        Job(name, tuple(case for case, _ in here.values()), {case.id: role for case, role in here.values()})
        for name, here in grouped.items()
    )


class RunsJobs(Protocol):
    """What runs jobs and says what came of them."""

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """All jobs. An environment that cannot be built makes its cases INCONCLUSIVE and the others go on."""
        ...


class Runner:
    """Runs jobs one by one. ``build`` makes an environment ready, ``start`` runs a command and returns its status."""

    def __init__(
        self, build: Callable[[str], None], options: Options, say: Say, start: Callable[..., int] | None = None
    ) -> None:
        self._build = build
        self._options = options
        self._say = say
        self._start = start or run_command

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """All jobs. An environment that cannot be built makes its cases INCONCLUSIVE and the others go on."""
        found: list[RunResult] = []
        unbuilt: list[str] = []
        try:
            for number, job in enumerate(jobs, start=1):
                self._say(f"[{number}/{len(jobs)}] {job.environment}: {', '.join(case.id for case in job.cases)}")
                try:
                    self._build(job.environment)
                except BuildError as error:
                    unbuilt.append(job.environment)
                    found.append(not_built(job, error, self._options))
                    continue
                with scratch() as folder:
                    report = folder / "report.json"
                    try:
                        found.append(run_job(job, self._options, self._start, report))
                    except KeyboardInterrupt:
                        found.append(interrupted_job(job, self._options, report))
                        raise
        except KeyboardInterrupt:
            return Outcome(results.merge(found), tuple(unbuilt), interrupted=True)
        return Outcome(results.merge(found), tuple(unbuilt))


def run_job(job: Job, options: Options, start: Callable[..., int], report: Path) -> RunResult:
    """Run a job's cases in a pytest of their own. ``report``: where that pytest writes its results, after every case anew."""
    with scratch() as folder:
        status = start(_command(job, options, folder, report), pytest_environment(folder))
        return judged(_collect(job, report, status, options), job, options)


def interrupted_job(job: Job, options: Options, report: Path) -> RunResult:
    """The verdicts that a job had reached when it was interrupted; what has none was not run, and gets none."""
    found = RunResult()
    with contextlib.suppress(UsageError):
        found = results.read(report)
    return cut_short(job, options, found)


def cut_short(job: Job, options: Options, found: RunResult) -> RunResult:
    """``found``, judged as far as it goes, with a note where cases of ``job`` have no verdict."""
    ours = tuple(result for result in found.results if result.case_id in {case.id for case in job.cases})
    note = f"{job.environment}: interrupted; only tests that had ended have a verdict"
    return judged(RunResult(ours, (*found.problems, note)), job, options)


def not_built(job: Job, error: BuildError, options: Options) -> RunResult:
    """The results of a job whose environment could not be built; why is told once, as a problem of the run."""
    why = "the environment could not be built: see the problem below"
    return RunResult(inconclusive(job.cases, job, why, options), (f"{job.environment}: {error}",))


def run_command(command: Sequence[str], environment: Mapping[str, str], *, to_stderr: bool = False) -> int:
    """Run ``command`` with our own output until it ends, or all of it on standard error where ours is for programs.

    Interrupted, it gets time to clean up before it is killed.
    """
    own_group = not sys.stdin.isatty()  # without a terminal nobody but us passes an interrupt on
    output = sys.stderr.buffer if to_stderr else None
    process = start_command(command, environment, own_group=own_group, output=output)
    try:
        return process.wait()
    except KeyboardInterrupt:
        if own_group:
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(INTERRUPT_GRACE_S)
        raise
    finally:
        end_command(process)


def start_command(
    command: Sequence[str], environment: Mapping[str, str], *, own_group: bool = True, output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start ``command``; it is told to end when the thread that started it ends. ``output`` takes its output, else ours does."""
    sys.stdout.flush()
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL if own_group else None,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        process_group=0 if own_group else None,
        preexec_fn=_end_with_parent(),
    )


def end_command(process: subprocess.Popen[bytes], grace_s: float = TERMINATE_GRACE_S) -> None:
    """End it if it still runs: first by SIGTERM, ``grace_s`` seconds later by SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def build_with_cache(say: Say) -> Callable[[str], None]:
    """Builds environments by name in the user's cache; an interpreter's path is taken as it is."""
    from ..environments.cache import EnvironmentCache
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    cache = EnvironmentCache()

    def build(name: str) -> None:
        if not names_interpreter(name):
            cache.ensure(resolve(name), progress=say)

    return build


def check_environments(jobs: Sequence[Job]) -> None:
    """Raise ``UsageError`` for a name that environments.toml does not have, or an interpreter without what cases are about."""
    from ..engines.target import inspect
    from ..environments.names import resolve
    from ..environments.sources import names_interpreter

    for job in jobs:
        if names_interpreter(job.environment):
            if not Path(job.environment).expanduser().exists():
                raise UsageError(
                    f"--env {job.environment}: no such interpreter. Give an interpreter's path or an environment's name"
                )
            inspect(job.environment, Path(job.environment).expanduser().absolute(), "auto")
        else:
            resolve(job.environment)


def keep(run: RunResult, destination: Path | None, cache: Path, say: Say, now: float | None = None) -> Path | None:
    """Write the results where the user asked (a directory, or a file ending in .json), and a copy into the cache."""
    name = f"vllm-regress-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{os.getpid()}.json"
    written = None
    if destination is not None:
        written = destination if destination.suffix == ".json" else destination / name
        results.write(written, run)
    try:
        results.write(cache / name, run)
        for old in sorted(cache.glob("vllm-regress-*.json"))[:-KEPT_COPIES]:
            old.unlink(missing_ok=True)
    except (OSError, UsageError) as error:
        say(f"no copy was kept: {error}")
    return written


def pytest_command(scratch: Path, root: Path, paths: Sequence[Path], timeout_s: float) -> list[str]:
    """A pytest of its own over ``paths``, with our plugins and no others (see ``pytest_environment``), and a limit for each test."""
    package = PACKAGE.resolve().parent
    installed = package.name in ("site-packages", "dist-packages")
    ini = scratch / "pytest.ini"
    ini.write_text(f"[pytest]\naddopts =\ntimeout = {timeout_s:g}\n")
    command = [sys.executable, "-P", "-B", "-c", _START, "" if installed else str(package)]
    command += [str(path.resolve()) for path in paths]
    command += [
        "-c",
        str(ini),
        f"--rootdir={root.resolve()}",
        f"--confcutdir={root.resolve()}",
        "--import-mode=importlib",
    ]
    command += [part for plugin in _PLUGINS for part in ("-p", plugin)]
    return [*command, "-p", "no:cacheprovider", "-q", "--continue-on-collection-errors"]


def pytest_environment(scratch: Path) -> dict[str, str]:
    """Ours, without what would change this pytest: the user's options and the plugins that happen to be installed."""
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    environment.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(scratch / "hypothesis"))
    return {**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _command(job: Job, options: Options, scratch: Path, report: Path) -> list[str]:
    command = pytest_command(
        scratch, job.cases[0].directory.parent, [case.directory for case in job.cases], OUTER_TIMEOUT_S
    )
    command += [f"--vllm-env={job.environment}", f"--vllm-report={report}"]
    if options.device:
        command.append(f"--vllm-device={options.device}")
    if workers := options.workers or job.workers:
        command += ["-n", workers, "--dist", "loadgroup"]
    return [*command, *options.pytest_args]


def _collect(job: Job, report: Path, status: int, options: Options) -> RunResult:
    found = RunResult()
    why = ended = f"pytest {_ended(status)}"
    try:
        found = results.read(report)
    except UsageError as error:
        why += f" and left no report that can be read ({error})" if report.exists() else " and wrote no report"
    known = {case.id for case in job.cases}
    ours = tuple(result for result in found.results if result.case_id in known)
    seen = {result.case_id for result in ours}
    if status in (0, 1):
        silent = [case for case in job.cases if case.id not in seen]
        why = f"{why} and reported nothing for this case" if why == ended else why
    else:
        silent = list(job.cases)
    problems = found.problems
    if status == 1 and not silent and all(result.expected for result in ours):
        on_gpu = all(result.device == "gpu" and result.verdict is Verdict.NOT_APPLICABLE for result in ours)
        why = "nothing was shown on a GPU: every case was NOT_APPLICABLE" if on_gpu else _UNSAID
        problems += (f"{job.environment}: {why}",)
    return RunResult(ours + inconclusive(silent, job, why, options), problems)


_UNSAID = "pytest failed, but no verdict says why: see its output above"


def judged(found: RunResult, job: Job, options: Options) -> RunResult:
    """With the command that repeats each result; in an evidence environment only the side that must be shown there is expected."""
    judged = []
    for result in found.results:
        result = dataclasses.replace(result, command=options.repeat(result.case_id, result.environment))
        role = job.roles.get(result.case_id)
        seen = combine(each.verdict for each in found.results if each.case_id == result.case_id)
        if role is not None and seen is not WANTED[role] and result.expected and result.verdict is seen:
            because = f"{job.environment} is evidence that the case is {WANTED[role].value}, and it was {seen.value}"
            result = dataclasses.replace(result, not_expected_because=because)
        judged.append(result)
    return dataclasses.replace(found, results=tuple(judged))


def inconclusive(cases: Sequence[Case], job: Job, why: str, options: Options) -> tuple[TestResult, ...]:
    """A result for each of a job's ``cases`` that no test gave one for."""
    return tuple(
        TestResult(
            case_id=case.id,
            test=f"{case.directory.name} (no test)",
            verdict=Verdict.INCONCLUSIVE,
            reason=why,
            device="unknown",
            environment=job.environment,
            started_at=time.time(),
            command=options.repeat(case.id, job.environment),
        )
        for case in cases
    )


def _ended(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    words = {2: "was interrupted", 3: "had an internal error", 4: "refused its arguments", 5: "found no test"}
    return words.get(status, f"ended with status {status}")


def _end_with_parent() -> Callable[[], None]:
    """For ``preexec_fn``: SIGTERM to the child when this process dies, even by SIGKILL (prctl PR_SET_PDEATHSIG)."""
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(1, signal.SIGTERM)
