"""Collect facts, cases, conformance and faults from a machine with a GPU in about a quarter of an hour, in one record.

    pip install . vllm==0.22.1                  # a virtual environment with torch 2.11.0 has what this vLLM needs
    python benchmarks/gpu_first.py --env .venv/bin/python --torch .venv/bin/python
    python benchmarks/gpu_first.py --env vllm-0.8.5 --device sim --record rehearsal.json

``--env`` is the environment under test. ``--torch`` is any interpreter with a CUDA build of torch; it plays the other tenant of the GPU. Each
step has its own time limit, and all of them together have ``--minutes`` (25). A step that fails is recorded as failed, and the next one runs.
The script prints a line for each step and writes the record after each step. It exits with status 1 if a step failed.

Without a GPU the run is a rehearsal: the record says so in its first line, has ``rehearsed`` instead of ``steps``, and is not written to
docs/records.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_vllm_regress.conformance.record import read_faults, read_report, unexplained
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings, Timeouts
from pytest_vllm_regress.gpus import nvml
from pytest_vllm_regress.gpus.visible import usable
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.files import write_atomically

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"
GIB = 2**30
CASES = ("lmfe-124", "vllm-17173", "vllm-21443", "vllm-24948", "vllm-45592", "vllm-51629", "vllm-55510")
ONE_GPU = ("test_offline.py", "test_structured.py", "test_serve.py")
TENANT_GIB = 20
PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_vllm_regress.plugin", "-p", "pytest_timeout", "-p", "xdist.plugin")
PROBE = """
import os, time

def tensor():
    import torch
    value = (torch.ones(4, device="cuda") * 2).sum().item()
    return {"sum": value, "device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda, "torch": torch.__version__}

def hold(gib):
    import torch
    hold.kept = torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return os.getpid()
"""
QUICK = """
def test_quick(vllm_engine):
    (result,) = vllm_engine.generate("Are you there?", {"max_tokens": 4, "temperature": 0})
    assert result["outputs"][0]["token_ids"]
"""
KILLED_CORE = """
import threading, pytest
from pytest_vllm_regress.errors import ChildError

pytestmark = pytest.mark.vllm_engine(generation="V1")  # V0's core is not a separate process

def test_core_is_killed(vllm_engine):
    first, *others = vllm_engine.child.processes()
    core = max(others, key=lambda process: process.memory_info().rss)
    threading.Timer(0.5, core.kill).start()
    with pytest.raises(ChildError):
        while True:  # so that a request is running whenever the core is killed
            vllm_engine.generate("Are you there?", {"max_tokens": 400, "ignore_eos": True, "n": 16}, timeout=30)

def test_the_next_one(vllm_engine):
    assert vllm_engine.generate("Are you there?", {"max_tokens": 4})
"""
STAYS = """
import time
def test_stays(vllm_engine, tmp_path_factory):
    open({ready!r}, "w").close()
    time.sleep(600)
"""
TENANT = """
import sys, torch
kept = torch.empty({gib} << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""
Facts = dict[str, Any]


class LeftOut(Exception):
    """Raised with the reason when a step cannot run here."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every step needs. ``left_s`` are the remaining seconds of the whole run."""

    env: str
    device: str
    torch: Path | None
    folder: Path
    until: float
    cases: tuple[str, ...] = CASES
    suite: tuple[str, ...] = ONE_GPU

    @property
    def left_s(self) -> float:
        return max(1.0, self.until - time.monotonic())

    def pytest(self, *arguments: str) -> list[str]:
        """Return the command line of a separate pytest."""
        return [
            *(sys.executable, "-m", "pytest", "-q", *PLUGINS),
            *(f"--vllm-env={self.env}", f"--vllm-device={self.device}", *arguments),
        ]

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a pytest that is killed at the end of the block."""
        command = self.pytest(*arguments)
        pipe, environment = subprocess.PIPE, {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str, allowed_s: float = 600) -> Facts:
        """Run a pytest to its end. Return its status, seconds and last lines."""
        begun = time.monotonic()
        with self.started(*arguments) as process:
            try:
                out, _ = process.communicate(timeout=min(allowed_s, self.left_s))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=60)
                out += "\nended: its time was used up"
            return _ended(process, out, begun)

    def file(self, name: str, text: str) -> str:
        place = self.folder / name
        place.write_text(text)
        return str(place)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session outside pytest, for probes."""
        timeouts = Timeouts()
        settings = Settings(environments=(self.env,), device=self.device)
        session = Session(settings, lambda phase, seconds: Deadline.after(phase, seconds or timeouts.of(phase)), print)
        try:
            yield session
        finally:
            session.close()

    def need_cuda(self) -> None:
        if self.device != "gpu":
            raise LeftOut(f"needs CUDA; this is a rehearsal on {self.device}")


def _ended(process: subprocess.Popen[str], out: str, begun: float) -> Facts:
    return {
        "status": process.returncode,
        "seconds": round(time.monotonic() - begun, 1),
        "end": out.strip().splitlines()[-6:],
    }


def facts(bench: Bench) -> Facts:
    """Collect the driver, the GPUs, and the time that NVML queries take."""
    machine = nvml.query_machine()
    if isinstance(machine, str):
        raise LeftOut(machine)
    device = usable().devices[0]
    return {
        "machine": dataclasses.asdict(machine),
        "usable": [dataclasses.asdict(gpu) for gpu in usable().devices],
        "look_ms": _median_ms(nvml.query_machine),
        "usage_ms": _median_ms(lambda: nvml.usage(device.uuid)),
        "usage": str(nvml.usage(device.uuid)),
    }


def fork(bench: Bench) -> Facts:
    """Check whether the warm agent forks, and use a CUDA tensor in a child."""
    bench.need_cuda()
    with bench.session() as session:
        target = session.target(bench.env)
        child = session.probe(target)
        file = bench.file("probe.py", PROBE)
        tensor = child.request("call", Deadline.after("probe", 120), file=file, function="tensor", arguments={})
        return {"start_method": child.start_method, "target": target.describe(), "tensor": tensor}


def release(bench: Bench) -> Facts:
    """Measure how long the driver keeps the memory of a killed process, as (milliseconds since, MiB used)."""
    bench.need_cuda()
    uuid = usable().devices[0].uuid
    with bench.session() as session:
        before = _used(uuid)
        child = session.probe(session.target(bench.env))
        file = bench.file("probe.py", PROBE)
        pid = child.request("call", Deadline.after("probe", 120), file=file, function="hold", arguments={"gib": 4})
        held, curve, begun = _used(uuid), [], time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() - begun < 10:
            curve.append((round(1000 * (time.monotonic() - begun)), _used(uuid) // 2**20))
            if curve[-1][1] <= before // 2**20 + 64:
                break
        return {"before_mib": before // 2**20, "held_mib": held // 2**20, "curve": curve[:: max(1, len(curve) // 50)]}


def cases(bench: Bench) -> Facts:
    """Run seven cases, each on the engine that it concerns."""
    report = bench.folder / "cases.json"
    ran = bench.run(*(f"cases/{name}" for name in bench.cases), f"--vllm-report={report}", allowed_s=480)
    results = json.loads(report.read_text())["results"] if report.exists() else []
    if silent := set(bench.cases) - {result["case_id"] for result in results}:
        raise RuntimeError(f"no verdict for {', '.join(sorted(silent))}: {ran}")
    return {
        **ran,
        "results": [{key: result[key] for key in ("test", "verdict", "reason", "gpu")} for result in results],
    }


def conformance(bench: Bench) -> Facts:
    """Run the part of the conformance suite for one GPU. The step fails if a failure is not explained by a known fault of vLLM."""
    report, suite = bench.folder / "conformance.xml", ROOT / "conformance"
    ran = bench.run(
        *(str(suite / name) for name in bench.suite), f"--junitxml={report}", "--timeout=900", allowed_s=480
    )
    if not report.exists():
        raise RuntimeError(f"no report: {ran}")
    suite_run = read_report(bench.env, report)
    open_ones = [
        f"{cell.section}: {cell.check}" for _, cell in unexplained([suite_run], read_faults(suite / "known.toml"))
    ]
    return {**ran, "status": int(bool(open_ones)), "unexplained": open_ones, "suite": dataclasses.asdict(suite_run)}


def core_killed(bench: Bench) -> Facts:
    """Kill an engine core during a request; the next test must get an engine."""
    return bench.run(bench.file("test_core_killed.py", KILLED_CORE), allowed_s=240)


def pytest_killed(bench: Bench) -> Facts:
    """Kill pytest while its engine holds the GPU; another pytest must get the GPU."""
    ready = bench.folder / "ready"
    with bench.started(bench.file("test_stays.py", STAYS.format(ready=str(ready)))) as process:
        deadline = Deadline.after("start", min(300, bench.left_s))
        while not ready.exists() and process.poll() is None and not deadline.passed:
            time.sleep(0.2)  # another process writes the file
        if not ready.exists():
            raise RuntimeError(f"the first pytest was not ready after {deadline.allowed_s:.0f} s")
    return bench.run(bench.file("test_quick.py", QUICK), allowed_s=240)


def tenant(bench: Bench) -> Facts:
    """Start an engine while another process holds memory of the GPU."""
    if bench.torch is None:
        raise LeftOut("needs --torch: an interpreter with a CUDA build of torch")
    command = [str(bench.torch), "-c", TENANT.format(gib=TENANT_GIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            if other.stdout.readline().strip() != "held":
                raise RuntimeError(f"the tenant ended with {other.wait(10)}")
            return bench.run(bench.file("test_quick.py", QUICK), allowed_s=240)
        finally:
            other.kill()


def two_at_once(bench: Bench) -> Facts:
    """Run two pytests at once, which take turns or share the GPU."""
    begun = time.monotonic()
    quick = bench.file("test_quick.py", QUICK)
    with bench.started(quick) as first, bench.started(quick) as second:
        ended = [
            _ended(process, process.communicate(timeout=min(300, bench.left_s))[0], begun)
            for process in (first, second)
        ]
    return {"status": max(abs(entry["status"]) for entry in ended), "runs": ended}


STEPS: Mapping[str, Callable[[Bench], Facts]] = {
    "facts": facts,
    "fork": fork,
    "release": release,
    "cases": cases,
    "conformance": conformance,
    "core-killed": core_killed,
    "pytest-killed": pytest_killed,
    "tenant": tenant,
    "two-at-once": two_at_once,
}


def rehearsal(device: str) -> str | None:
    """Return why this run says nothing about GPUs, or None if it runs on one."""
    if device != "gpu":
        return f"the device is {device}"
    if "FAKE_NVML" in os.environ or not (Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))):
        return "NVML is a stand-in: this machine has no GPU"
    return None


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    why = rehearsal(options.device)
    record: Facts = {} if why is None else {"rehearsal": f"Nothing here was seen on a GPU: {why}."}
    record |= {"device": options.device, "env": options.env, "machine": platform.platform()}
    record |= {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    steps: dict[str, Facts] = record.setdefault("steps" if why is None else "rehearsed", {})
    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + 60 * options.minutes
        bench = Bench(options.env, options.device, options.torch, Path(folder), until, options.cases, options.suite)
        for name in options.only:
            entry = steps[name] = step(bench, STEPS[name])
            print(f"{name}: {entry['outcome']} in {entry['seconds']:.1f} s {entry.get('why', '')}", flush=True)
            write_atomically(options.record, json.dumps(record, indent=1, default=str) + "\n")
    if why is not None:
        print(record["rehearsal"])
    return int(any(outcome["outcome"] == "failed" for outcome in steps.values()))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line. Exits if it is invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="environment or interpreter under test")
    parser.add_argument("--torch", type=Path, help="an interpreter with a CUDA build of torch")
    parser.add_argument("--device", default="gpu", choices=("gpu", "sim", "cpu"))
    parser.add_argument("--minutes", type=float, default=25)
    for name, default in (("only", tuple(STEPS)), ("cases", CASES), ("suite", ONE_GPU)):
        parser.add_argument(
            f"--{name}", type=lambda text: tuple(text.split(",")), default=default, help=",".join(default)
        )
    parser.add_argument("--record", type=Path, default=RECORDS / "gpu.json")
    given = parser.parse_args(arguments)
    if unknown := set(given.only) - STEPS.keys():
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    why = rehearsal(given.device)
    if why is not None and RECORDS in given.record.resolve().parents:
        parser.error(f"this is a rehearsal ({why}) and no record: name a file outside docs/records by --record")
    return given


def step(bench: Bench, do: Callable[[Bench], Facts]) -> Facts:
    """Run a step. Return its result, or why it failed or was left out. A pytest that exits with an error fails the step."""
    begun = time.monotonic()
    try:
        if begun > bench.until:
            raise LeftOut("the time is used up")
        collected = do(bench)
        entry = {"outcome": "failed" if collected.get("status") else "done", "found": collected}
        if collected.get("status"):
            entry["why"] = f"pytest ended with {collected['status']}"
    except LeftOut as why:
        entry = {"outcome": "left out", "why": str(why)}
    except Exception as error:  # the next steps may still work
        entry = {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:4000]}
    return {**entry, "seconds": round(time.monotonic() - begun, 1)}


def _used(uuid: str) -> int:
    now = nvml.usage(uuid)
    if isinstance(now, str):
        raise RuntimeError(now)
    return now.used


def _median_ms(ask: Callable[[], object], times: int = 20) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        ask()
        taken.append(1000 * (time.perf_counter() - begun))
    return round(statistics.median(taken), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
