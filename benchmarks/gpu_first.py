"""The first quarter of an hour on a machine with a GPU: facts, cases, conformance and faults, in one record.

    pip install . vllm==0.22.1                  # a virtual environment with torch 2.11.0 has what this vLLM wants
    python benchmarks/gpu_first.py --env .venv/bin/python --torch .venv/bin/python
    python benchmarks/gpu_first.py --env vllm-0.8.5 --device sim --record rehearsal.json

``--env`` is the environment under test, ``--torch`` any interpreter with a CUDA build of torch: it plays the other tenant. Every step has
a time of its own, and all of them ``--minutes`` (25). A step that fails is recorded as it failed, and the next one runs. The record is
written after each step. Exit status 1 when a step failed. Where there is no GPU it is a rehearsal: its file says so in its first line, has
``rehearsed`` in the place of ``steps``, and is not written to docs/records.
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
from pytest_vllm_regress.util.files import write_whole

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

pytestmark = pytest.mark.vllm_engine(generation="V1")  # V0's core is no process of its own

def test_core_is_killed(vllm_engine):
    first, *others = vllm_engine.child.processes()
    core = max(others, key=lambda process: process.memory_info().rss)
    threading.Timer(0.5, core.kill).start()
    with pytest.raises(ChildError):
        while True:  # some request is under way then, however fast they are
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
    """The step cannot be done here; says why."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every step needs. ``left_s``: seconds left of all."""

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
        """The command line of a pytest of its own."""
        return [
            *(sys.executable, "-m", "pytest", "-q", *PLUGINS),
            *(f"--vllm-env={self.env}", f"--vllm-device={self.device}", *arguments),
        ]

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A pytest, which does not outlive the block."""
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
        pid = child.request("call", Deadline.after("probe", 120), file=file, function="hold", arguments={"gib": 4})
        held, curve, begun = _used(uuid), [], time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() - begun < 10:
            curve.append((round(1000 * (time.monotonic() - begun)), _used(uuid) // 2**20))
            if curve[-1][1] <= before // 2**20 + 64:
                break
        return {"before_mib": before // 2**20, "held_mib": held // 2**20, "curve": curve[:: max(1, len(curve) // 50)]}


def cases(bench: Bench) -> Facts:
    """Seven documented failures, each on the engine it is about."""
    report = bench.folder / "cases.json"
    ran = bench.run(*(f"cases/{name}" for name in bench.cases), f"--vllm-report={report}", allowed_s=480)
    found = json.loads(report.read_text())["results"] if report.exists() else []
    if silent := set(bench.cases) - {each["case_id"] for each in found}:
        raise RuntimeError(f"no verdict for {', '.join(sorted(silent))}: {ran}")
    return {**ran, "results": [{key: each[key] for key in ("test", "verdict", "reason", "gpu")} for each in found]}


def conformance(bench: Bench) -> Facts:
    """The conformance suite's part for one GPU. A failure that no fault of vLLM's explains is one of the step."""
    report, suite = bench.folder / "conformance.xml", ROOT / "conformance"
    ran = bench.run(
        *(str(suite / each) for each in bench.suite), f"--junitxml={report}", "--timeout=900", allowed_s=480
    )
    if not report.exists():
        raise RuntimeError(f"no report: {ran}")
    made = read_report(bench.env, report)
    open_ones = [f"{cell.section}: {cell.check}" for _, cell in unexplained([made], read_faults(suite / "known.toml"))]
    return {**ran, "status": int(bool(open_ones)), "unexplained": open_ones, "suite": dataclasses.asdict(made)}


def core_killed(bench: Bench) -> Facts:
    """An engine's last process is killed in mid-request; the next test gets an engine."""
    return bench.run(bench.file("test_core_killed.py", KILLED_CORE), allowed_s=240)


def pytest_killed(bench: Bench) -> Facts:
    """pytest is killed while its engine holds the GPU; another one gets it."""
    ready = bench.folder / "ready"
    with bench.started(bench.file("test_stays.py", STAYS.format(ready=str(ready)))) as process:
        deadline = Deadline.after("start", min(300, bench.left_s))
        while not ready.exists() and process.poll() is None and not deadline.passed:
            time.sleep(0.2)  # a file of another process
        if not ready.exists():
            raise RuntimeError(f"the first pytest was not ready after {deadline.allowed_s:.0f} s")
    return bench.run(bench.file("test_quick.py", QUICK), allowed_s=240)


def tenant(bench: Bench) -> Facts:
    """Another process holds memory of the GPU: engines start beside it."""
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
    """Two pytests take turns, or share what there is."""
    begun = time.monotonic()
    quick = bench.file("test_quick.py", QUICK)
    with bench.started(quick) as one, bench.started(quick) as other:
        ended = [_ended(each, each.communicate(timeout=min(300, bench.left_s))[0], begun) for each in (one, other)]
    return {"status": max(abs(each["status"]) for each in ended), "runs": ended}


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
    """Why nothing that is seen here says anything of a GPU; None where it does."""
    if device != "gpu":
        return f"the device is {device}"
    if "FAKE_NVML" in os.environ or not (Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))):
        return "NVML is a stand-in: this machine has no GPU"
    return None


def main(arguments: list[str]) -> int:
    given = parse(arguments)
    why = rehearsal(given.device)
    record: Facts = {} if why is None else {"rehearsal": f"Nothing here was seen on a GPU: {why}."}
    record |= {"device": given.device, "env": given.env, "machine": platform.platform()}
    record |= {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    steps: dict[str, Facts] = record.setdefault("steps" if why is None else "rehearsed", {})
    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + 60 * given.minutes
        bench = Bench(given.env, given.device, given.torch, Path(folder), until, given.cases, given.suite)
        for name in given.only:
            made = steps[name] = step(bench, STEPS[name])
            print(f"{name}: {made['outcome']} in {made['seconds']:.1f} s {made.get('why', '')}", flush=True)
            write_whole(given.record, json.dumps(record, indent=1, default=str) + "\n")
    if why is not None:
        print(record["rehearsal"])
    return int(any(each["outcome"] == "failed" for each in steps.values()))


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; ends the program where it is wrong."""
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
    """What a step found; failed with the reason, or left out with it. What a pytest says in the end, its exit status says."""
    begun = time.monotonic()
    try:
        if begun > bench.until:
            raise LeftOut("the time is used up")
        found = do(bench)
        made = {"outcome": "failed" if found.get("status") else "done", "found": found}
        if found.get("status"):
            made["why"] = f"pytest ended with {found['status']}"
    except LeftOut as why:
        made = {"outcome": "left out", "why": str(why)}
    except Exception as error:  # the next step may still say something
        made = {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:4000]}
    return {**made, "seconds": round(time.monotonic() - begun, 1)}


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
