"""The first quarter of an hour on a machine with a GPU: facts, cases, conformance and faults, in one record.

    python benchmarks/gpu_first.py --env .venv/bin/python --torch .venv/bin/python
    python benchmarks/gpu_first.py --env vllm-0.8.5 --device sim       # a rehearsal; what needs CUDA is left out

``--env`` is the environment under test, ``--torch`` any interpreter with a CUDA build of torch (2.11.0 will do): it plays the other tenant.
Every step has a time of its own, and all of them ``--minutes`` (25). A step that fails is recorded as it failed, and the next one runs.
The record is written after each step. Exit status 1 when a step failed.
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

from pytest_vllm_regress.conformance.record import read_report
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings
from pytest_vllm_regress.gpus import nvml
from pytest_vllm_regress.gpus.visible import usable
from pytest_vllm_regress.util.deadline import Deadline, Timeouts
from pytest_vllm_regress.util.files import write_whole

ROOT = Path(__file__).parents[1]
GIB = 2**30
CASES = ("lmfe-124", "vllm-17173", "vllm-21443", "vllm-24948", "vllm-45592", "vllm-51629", "vllm-55510")
ONE_GPU = "test_offline.py or test_structured.py or test_serve.py"
TENANT_GIB = 20
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

def test_core_is_killed(vllm_engine):
    core = vllm_engine.child.processes()[-1]
    killer = threading.Timer(1.0, core.kill)
    killer.start()
    with pytest.raises(ChildError):
        vllm_engine.generate("Are you there?", {"max_tokens": 400, "ignore_eos": True, "n": 64}, timeout=30)

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
    """The step cannot be done here; says why."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every step needs. ``left_s``: seconds left of all."""

    env: str
    device: str
    torch: Path | None
    folder: Path
    until: float

    @property
    def left_s(self) -> float:
        return max(1.0, self.until - time.monotonic())

    def pytest(self, *arguments: str) -> list[str]:
        """The command line of a pytest of its own."""
        return [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"),
            *(f"--vllm-env={self.env}", f"--vllm-device={self.device}", *arguments),
        ]

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A pytest, which does not outlive the block."""
        command = self.pytest(*arguments)
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str, allowed_s: float = 600) -> Facts:
        """A pytest to its end: status, seconds, and its last lines."""
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
        """A session with a probe or two, outside pytest."""
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
    """Driver, GPUs, and what asking NVML costs."""
    machine = nvml.look()
    if isinstance(machine, str):
        raise LeftOut(machine)
    device = usable().devices[0]
    return {
        "machine": dataclasses.asdict(machine),
        "usable": [dataclasses.asdict(each) for each in usable().devices],
        "look_ms": _median_ms(nvml.look),
        "usage_ms": _median_ms(lambda: nvml.usage(device.uuid)),
        "usage": str(nvml.usage(device.uuid)),
    }


def fork(bench: Bench) -> Facts:
    """Whether the warm agent forks, and a CUDA tensor in a child that it forked."""
    bench.need_cuda()
    with bench.session() as session:
        target = session.target(bench.env)
        child = session.probe(target)
        file = bench.file("probe.py", PROBE)
        found = child.request("call", Deadline.after("probe", 120), file=file, function="tensor", arguments={})
        return {"start_method": child.start_method, "target": target.describe(), "tensor": found}


def release(bench: Bench) -> Facts:
    """How long a driver keeps the memory of a process that was killed: milliseconds since, MiB used."""
    bench.need_cuda()
    uuid = usable().devices[0].uuid
    with bench.session() as session:
        before = _used(uuid)
        child = session.probe(session.target(bench.env))
        file = bench.file("probe.py", PROBE)
        child.request("call", Deadline.after("probe", 120), file=file, function="hold", arguments={"gib": 4})
        held, curve, begun = _used(uuid), [], time.monotonic()
        os.kill(child.pid or 0, signal.SIGKILL)
        while time.monotonic() - begun < 10:
            curve.append((round(1000 * (time.monotonic() - begun)), _used(uuid) // 2**20))
            if curve[-1][1] <= before // 2**20 + 64:
                break
        return {"before_mib": before // 2**20, "held_mib": held // 2**20, "curve": curve[:: max(1, len(curve) // 50)]}


def cases(bench: Bench) -> Facts:
    """Seven documented failures, each on the engine it is about."""
    report = bench.folder / "cases.json"
    ran = bench.run(*(f"cases/{name}" for name in CASES), f"--vllm-report={report}", allowed_s=480)
    found = json.loads(report.read_text())["results"] if report.exists() else []
    return {**ran, "results": [{key: each[key] for key in ("test", "verdict", "reason", "gpu")} for each in found]}


def conformance(bench: Bench) -> Facts:
    """The conformance suite's part for one GPU."""
    report = bench.folder / "conformance.xml"
    ran = bench.run("conformance", f"--junitxml={report}", "-k", ONE_GPU, "--timeout=900", allowed_s=480)
    return {**ran, "suite": dataclasses.asdict(read_report(bench.env, report)) if report.exists() else None}


def core_killed(bench: Bench) -> Facts:
    """An engine's last process is killed in mid-request; the next test gets an engine."""
    return _must_pass(bench.run(bench.file("test_core_killed.py", KILLED_CORE), allowed_s=240))


def pytest_killed(bench: Bench) -> Facts:
    """pytest is killed while its engine holds the GPU; another one gets it."""
    ready = bench.folder / "ready"
    with bench.started(bench.file("test_stays.py", STAYS.format(ready=str(ready)))) as process:
        deadline = Deadline.after("start", min(300, bench.left_s))
        while not ready.exists() and process.poll() is None and not deadline.passed:
            time.sleep(0.2)  # a file of another process
        if not ready.exists():
            raise RuntimeError(f"the first pytest was not ready after {deadline.allowed_s:.0f} s")
    return _must_pass(bench.run(bench.file("test_quick.py", QUICK), allowed_s=240))


def tenant(bench: Bench) -> Facts:
    """Another process holds memory of the GPU: engines start beside it."""
    bench.need_cuda()
    if bench.torch is None:
        raise LeftOut("needs --torch: an interpreter with a CUDA build of torch")
    command = [str(bench.torch), "-c", TENANT.format(gib=TENANT_GIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            if other.stdout.readline().strip() != "held":
                raise RuntimeError(f"the tenant ended with {other.wait(10)}")
            return _must_pass(bench.run(bench.file("test_quick.py", QUICK), allowed_s=240))
        finally:
            other.kill()


def two_at_once(bench: Bench) -> Facts:
    """Two pytests take turns, or share what there is."""
    begun = time.monotonic()
    quick = bench.file("test_quick.py", QUICK)
    with bench.started(quick) as one, bench.started(quick) as other:
        ended = [_ended(each, each.communicate(timeout=min(300, bench.left_s))[0], begun) for each in (one, other)]
    return {"runs": [_must_pass(each) for each in ended]}


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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", required=True, help="environment or interpreter under test")
    parser.add_argument("--torch", type=Path, help="an interpreter with a CUDA build of torch")
    parser.add_argument("--device", default="gpu", choices=("gpu", "sim", "cpu"))
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--only", default=",".join(STEPS), help=f"steps, of {', '.join(STEPS)}")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "records" / "gpu.json")
    given = parser.parse_args(arguments)
    unknown = set(given.only.split(",")) - STEPS.keys()
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    record: Facts = {"device": given.device, "env": given.env, "machine": platform.platform(), "steps": {}}
    record["at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + 60 * given.minutes
        bench = Bench(given.env, given.device, given.torch, Path(folder), until)
        for name in given.only.split(","):
            record["steps"][name] = made = step(bench, STEPS[name])
            print(f"{name}: {made['outcome']} in {made['seconds']:.1f} s {made.get('why', '')}", flush=True)
            write_whole(given.record, json.dumps(record, indent=1, default=str) + "\n")
    return int(any(each["outcome"] == "failed" for each in record["steps"].values()))


def step(bench: Bench, do: Callable[[Bench], Facts]) -> Facts:
    """What a step found; failed with the reason, or left out with it."""
    begun = time.monotonic()
    try:
        if time.monotonic() > bench.until:
            raise LeftOut("the time is used up")
        found = {"outcome": "done", "found": do(bench)}
    except LeftOut as why:
        found = {"outcome": "left out", "why": str(why)}
    except Exception as error:  # the next step may still say something
        found = {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:4000]}
    return {**found, "seconds": round(time.monotonic() - begun, 1)}


def _must_pass(ran: Facts) -> Facts:
    if ran["status"] != 0:
        raise RuntimeError(f"pytest ended with {ran['status']} after {ran['seconds']} s: {ran['end']}")
    return ran


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
