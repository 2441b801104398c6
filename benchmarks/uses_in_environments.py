"""Compare what `vllm-regress uses` says of a project with what environments do: imports, bindings,
and starts of the server.

    python benchmarks/uses_in_environments.py vllm-0.8.4 vllm-0.11.2 ...

The project has uses of each kind that came and went between releases. Environments are built if
they are not in the cache. The exit status is 1 if an environment and the history contradict each
other.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pytest_vllm_regress.answers.api_history.store import History, history
from pytest_vllm_regress.answers.uses.check import UseChecker
from pytest_vllm_regress.answers.uses.project import read_project
from pytest_vllm_regress.answers.uses.smoke import Smoke, Start, smoke
from pytest_vllm_regress.answers.uses.use import Project, Use
from pytest_vllm_regress.engines.standalone import bare_session

PROJECT = {
    "app.py": """
import vllm.envs as envs
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import GuidedDecodingParams, StructuredOutputsParams
from vllm.utils import get_open_port
from vllm.utils.network_utils import get_ip
from vllm.v1.metrics.loggers import StatLoggerBase

METRICS = ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total")


class Logger(StatLoggerBase):
    def record(self, scheduler_stats, iteration_stats): ...


class Other(StatLoggerBase):
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...


def main(client):
    print(envs.VLLM_USE_V1, LLM.sleep, LLM.collective_rpc)
    EngineArgs(model="m", swap_space=1, worker_extension_cls="x", logprobs_mode="raw")
    SamplingParams(n=1, guided_decoding=None, structured_outputs=None, truncate_prompt_tokens=5)
    client.post("http://localhost:8000/v1/completions")
    client.post("http://localhost:8000/v1/responses")
    client.post("http://localhost:8000/v1/messages")
""",
    "plain.sh": "vllm serve m --enable-prefix-caching\n",
    "old.sh": "VLLM_USE_V1=1 VLLM_ATTENTION_BACKEND=x VLLM_LOGGING_LEVEL=INFO vllm serve m --disable-log-requests\n",
    "new.sh": "vllm serve m --enable-log-requests\n",
    "parser.sh": "vllm serve m --enable-auto-tool-choice --tool-call-parser minimax\n",
    "sizes.sh": "vllm serve m --swap-space 1 --guided-decoding-backend auto --structured-outputs-config x --max-model-len 1\n",
}
STARTED = ("plain.sh", "old.sh", "new.sh", "parser.sh")


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison.

    ``recorded``: whether the history has it; ``observed``: whether the environment has it, None if
    that was not decided.
    """

    kind: str
    name: str
    recorded: bool
    observed: bool | None


def project(folder: Path) -> Project:
    """Write the project and read it."""
    for name, text in PROJECT.items():
        (folder / name).write_text(text)
    read = read_project(folder, history())
    return dataclasses.replace(
        read, commands=tuple(c for c in read.commands if c.place.file in STARTED)
    )


def rows(result: Smoke, read: Project, known: History) -> Iterator[Row]:
    """Yield the comparisons for one environment."""
    checker, number = UseChecker(known), known.releases.index(result.version)
    observed: dict[Use, bool | None] = {
        use: None if missing is None else not missing for use, missing in result.missing.items()
    }
    for use in read.uses:
        status = checker.statuses(use)[number]
        if status.sure:
            exists = _served(use, result) if use.kind in ("route", "metric") else observed.get(use)
            yield Row(use.kind, use.name, not status.missing, exists)
    for start in result.starts:
        options = [
            use
            for use in read.uses
            if use.place.file == start.command.place.file and use.kind != "environment"
        ]
        has_all = not any(checker.statuses(use)[number].missing for use in options)
        yield Row("start", " ".join(start.words), has_all, _started(start))


def _served(use: Use, result: Smoke) -> bool | None:
    """Return whether the plain server has a route or a metric: those of this project need no
    option."""
    offered = result.offered
    return (
        None
        if not offered
        else use.targets[0] in offered or use.targets[0].removesuffix("_total") in offered
    )


def _started(start: Start) -> bool | None:
    """Return whether a server started; None if it failed for another reason than its options."""
    if not start.error:
        return True
    return (
        False
        if any(
            words in start.error
            for words in ("unrecognized argument", "invalid choice", "invalid tool call")
        )
        else None
    )


def without_starts(read: Project) -> Project:
    """Return the part of the project that is checked without starting a server."""
    uses = tuple(use for use in read.uses if use.kind not in ("route", "metric"))
    return dataclasses.replace(read, uses=uses, commands=())


def main(environments: list[str], starts: bool) -> int:
    contradictions = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_session(lambda line: print(line, file=sys.stderr), device="sim") as session,
    ):
        read = project(Path(folder))
        if not starts:
            read = without_starts(read)
        for environment in environments:
            result = smoke(
                session, environment, read, history(), lambda line: print(line, file=sys.stderr)
            )
            compared = list(rows(result, read, history()))
            wrong = [
                row for row in compared if row.observed is not None and row.observed != row.recorded
            ]
            contradictions += len(wrong)
            print(f"{environment}: vLLM {result.version}")
            for kind in dict.fromkeys(row.kind for row in compared):
                counts = collections.Counter(
                    (row.recorded, row.observed) for row in compared if row.kind == kind
                )
                agree, there, gone = (
                    counts[True, True] + counts[False, False],
                    counts[True, True],
                    counts[False, False],
                )
                print(
                    f"  {kind}: {agree} agree ({there} exist, {gone} do not), {counts[True, None] + counts[False, None]} undecided"
                )
            for row in wrong:
                print(
                    f"  contradiction: {row.kind} {row.name}: history {row.recorded}, environment {row.observed}"
                )
            for row in compared:
                if row.observed is None:
                    print(f"  undecided: {row.kind} {row.name}: history {row.recorded}")
            for start in result.starts:
                if start.error:
                    print(f"  {' '.join(start.words)}: {start.error}")
            sys.stdout.flush()
    return int(contradictions > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environments", nargs="+", metavar="ENV")
    parser.add_argument(
        "--no-starts", action="store_true", help="import and bind only; start no server"
    )
    arguments = parser.parse_args()
    sys.exit(main(arguments.environments, not arguments.no_starts))
