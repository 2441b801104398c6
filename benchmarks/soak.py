"""Start hundreds of engines and send thousands of requests in one session, and check that nothing
grows.

    python benchmarks/soak.py --starts 500 --requests 20000 --env vllm-0.8.5

It prints a row of counts now and then, and at the end the growth since the warm-up (the first fifth
of the starts). It exits with status 1 if anything grew by more than ``ALLOWED``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import time
from pathlib import Path

import psutil

from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings, Timeouts
from pytest_vllm_regress.engines.spec import EngineSpec
from pytest_vllm_regress.util.deadline import Deadline

MIB = 2**20
ALLOWED = {
    "controller MiB": 8.0,
    "agent MiB": 8.0,
    "descriptors": 0.0,
    "agent descriptors": 0.0,
    "threads": 0.0,
    "processes": 0.0,
    "shared memory": 0.0,
    "disk MiB": 8.0,
}
"""Maximum growth since the warm-up.

The small logs of stopped engines remain until the session ends.
"""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Counts at one moment, while no engine is running."""

    starts: int
    requests: int
    seconds: float
    values: dict[str, float]

    def row(self) -> str:
        return (
            f"| {self.starts} | {self.requests} | {self.seconds:.0f} | "
            + " | ".join(f"{value:.6g}" for value in self.values.values())
            + " |"
        )


def take_sample(session: Session, starts: int, requests: int, began: float) -> Sample:
    """Count everything that could be left behind."""
    controller = psutil.Process()
    agents = [
        psutil.Process(agent.pid) for agent in session.agents.started if agent.pid is not None
    ]
    values = {
        "controller MiB": round(controller.memory_info().rss / MIB, 1),
        "agent MiB": round(sum(agent.memory_info().rss for agent in agents) / MIB, 1),
        "descriptors": controller.num_fds(),
        "agent descriptors": sum(agent.num_fds() for agent in agents),
        "threads": controller.num_threads(),
        "processes": len(process_tree.with_tag(session.run.tag)),
        "shared memory": len(os.listdir("/dev/shm")),
        "disk MiB": round(
            sum(path.stat().st_size for path in session.run.path.rglob("*") if path.is_file())
            / MIB,
            1,
        ),
    }
    return Sample(starts, requests, time.monotonic() - began, values)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="vllm-0.8.5")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--starts", type=int, default=500)
    parser.add_argument("--requests", type=int, default=20_000)
    options = parser.parse_args()
    timeouts = Timeouts()
    settings = Settings(environments=(options.env,), device=options.device)
    session = Session(
        settings, lambda phase, seconds: Deadline.after(phase, seconds or timeouts.of(phase))
    )
    requests_each = -(-options.requests // options.starts)
    samples, requests, leftovers = [], 0, 0
    try:
        target = session.target(options.env)
        versions = (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        print(f"{target.describe()}\n{versions}\n", flush=True)
        began = time.monotonic()
        for number in range(1, options.starts + 1):
            spec = EngineSpec.create(
                generation="V1" if number % 2 else "V0",
                tensor_parallel_size=2 if number % 10 == 0 else 1,
            )
            engine = session.start("offline", target, spec, user="soak", fresh=True)
            answers = engine.generate(
                [f"request {n}" for n in range(requests_each)],
                {"max_tokens": 4, "ignore_eos": True},
            )
            assert all(len(answer["outputs"][0]["token_ids"]) == 4 for answer in answers)
            requests += len(answers)
            leftovers += len(engine.stop())
            if number == 1:
                print(
                    f"| starts | requests | s | {' | '.join(ALLOWED)} |\n|{' --- |' * (len(ALLOWED) + 3)}"
                )
            if number % max(1, options.starts // 20) == 0:
                samples.append(take_sample(session, number, requests, began))
                print(samples[-1].row(), flush=True)
        folder = session.run.path
    finally:
        session.close()
    warm, end = samples[len(samples) // 5], samples[-1]
    grown = {
        name: end.values[name] - warm.values[name]
        for name, allowed in ALLOWED.items()
        if end.values[name] - warm.values[name] > allowed
    }
    print(
        f"\n{requests} requests, {leftovers} leftovers; run directory {'still there' if Path(folder).exists() else 'removed'}"
    )
    print(f"grown since the warm-up ({warm.starts} starts): {grown or 'nothing'}")
    return 1 if grown or Path(folder).exists() else 0


if __name__ == "__main__":
    raise SystemExit(main())
