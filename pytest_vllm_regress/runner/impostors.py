"""Each case against failures that are not its own: a pytest for each environment, with the plugin's impostors between test and target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cases import impostors
from ..cases.impostors import Trial
from ..cases.model import Case
from ..errors import BuildError
from ..util.rundir import scratch
from .runner import OUTER_TIMEOUT_S, Say, plan, pytest_command, pytest_environment, run_command

FILE = "impostors.json"


def try_impostors(
    cases: Sequence[Case],
    build: Callable[[str], None],
    say: Say,
    device: str | None = None,
    start: Callable[..., int] = run_command,
) -> tuple[Trial, ...]:
    """Every impostor on one test of each case, in the first environment of each side. What could not be tried is missing from the trials."""
    found: list[Trial] = []
    jobs = plan(cases) if cases else ()
    for number, job in enumerate(jobs, start=1):
        say(f"impostors [{number}/{len(jobs)}] {job.environment}: {', '.join(case.id for case in job.cases)}")
        try:
            build(job.environment)
        except BuildError as error:
            say(f"{job.environment}: {error}")
            continue
        with scratch() as folder:
            file = folder / FILE
            root = job.cases[0].directory.parent
            command = pytest_command(folder, root, [case.directory for case in job.cases], OUTER_TIMEOUT_S)
            command += [f"--vllm-env={job.environment}", f"--vllm-impostors={file}"]
            start([*command, f"--vllm-device={device}"] if device else command, pytest_environment(folder))
            if file.exists():
                found += impostors.read(file)
    return tuple(found)
