"""Prove on a machine with a GPU that the harness works there: a ranked list of steps within
``--minutes``, in one ledger.

    pip install . vllm==0.26.0    # into an environment that has the torch which this vLLM needs
    python benchmarks/gpu_first.py --env .venv/bin/python
    python benchmarks/gpu_first.py --env vllm-0.8.5 --device sim --ledger rehearsal.jsonl

``--env`` is the environment under test. Everything runs on the first usable GPU or MIG device, and
adapts to it: a driver or GPU that is too old for the environment ends the script before the first
step, and the memory that steps hold is a part of what is free. ``--torch`` is an interpreter with a
CUDA build of torch, which plays the other tenant of the GPU (default: that of the environment).

The ledger (``gpu_ledger.py``) says what has been run on which vLLM and GPU. Each result is added as it
comes, and only what is missing is run: an interrupted run goes on where it was. Cases and checks run
in ``--jobs`` workers that share the GPU, those first that no GPU has run yet.

``STEPS`` is ranked: the first steps are necessary. Each has a share of the minutes, and time that a
step leaves goes to the next one, so all of them together never take longer. The first start of an
engine, which compiles kernels, is a step of its own; if it fails, the steps that need an engine are
left out. Any other step that fails is recorded as failed, and the next one runs. Exit codes: 0 all
necessary steps are done and none failed; 1 one failed, or a necessary one was left out or cut off; 2
usage, or this environment cannot run on this GPU.

Without a GPU the run is a rehearsal: its ledger says so in the first line and is not one of
docs/records.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pytest_vllm_regress.cases.loading import load_all_cases
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.engines.gpus import nvml
from pytest_vllm_regress.engines.gpus.visible import ORDER, PCI, VISIBLE, usable
from pytest_vllm_regress.engines.placement import Placement
from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.engines.session import Session
from pytest_vllm_regress.engines.settings import Settings, Timeouts
from pytest_vllm_regress.engines.target import built_target
from pytest_vllm_regress.errors import RegressError
from pytest_vllm_regress.runner.executors import check_gpu_fits
from pytest_vllm_regress.surveys.conformance import read_known, read_report, unexplained
from pytest_vllm_regress.util.deadline import Deadline
from pytest_vllm_regress.util.paths import strip_machine_paths
from pytest_vllm_regress.util.store import Store

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # a script has only its own folder

from benchmarks import gpu_ledger  # noqa: E402

RECORDS = ROOT / "docs" / "records"
LEDGER = RECORDS / "gpu" / "ledger.jsonl"
ONE_GPU = ("test_offline.py", "test_structured.py", "test_serve.py")
JOBS = 6
"""Workers that share a GPU. With two engines each and room for their next ones they need 60 GiB."""
MIB = 2**20
ENGINE_MIB = 4608
"""What a tiny engine needs with its margin: 3.25 GiB, as the harness reserves, and what CUDA itself
takes."""
STOP_S = 20.0
"""Seconds of a step's time in which a pytest that is interrupted ends its engines."""
PLUGINS = (
    "-p",
    "no:cacheprovider",
    "-p",
    "pytest_vllm_regress.plugin",
    "-p",
    "pytest_timeout",
    "-p",
    "xdist.plugin",
)
PROBE = """
import os, time

def tensor():
    import torch
    value = (torch.ones(4, device="cuda") * 2).sum().item()
    return {"sum": value, "device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda, "torch": torch.__version__}

def hold(mib):
    import torch
    hold.kept = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return os.getpid()
"""
QUICK = """
def test_quick(vllm_engine):
    (result,) = vllm_engine.generate("Are you there?", {"max_tokens": 4, "temperature": 0})
    assert result["outputs"][0]["token_ids"]
"""
SAMPLED = """
def test_sampled(vllm_engine):
    parameters = {"max_tokens": 8, "temperature": 1, "top_p": 0.9, "top_k": 20, "ignore_eos": True}
    (result,) = vllm_engine.generate("Are you there?", parameters)
    assert len(result["outputs"][0]["token_ids"]) == 8
    assert "Using FlashInfer for top-p & top-k sampling" in vllm_engine.child.log.read_text()
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
import pathlib, time
from pytest_vllm_regress.util.files import write_atomically
def test_stays(vllm_engine):
    write_atomically(pathlib.Path({ready!r}), " ".join(str(process.pid) for process in vllm_engine.child.processes()))
    time.sleep(600)
"""
TENANT = """
import sys, torch
kept = torch.empty({mib} << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""
Facts = dict[str, Any]


class LeftOut(Exception):
    """Raised with the reason when a step cannot run here."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """What every step needs. ``gpu``: the one that is used, on device gpu.

    ``until``: when the running step must have ended.
    """

    env: str
    device: str
    torch: Path | None
    folder: Path
    until: float
    where: gpu_ledger.Where
    gpu: nvml.Gpu | None = None
    cases: tuple[str, ...] = ()
    suite: tuple[str, ...] = ONE_GPU
    jobs: int = JOBS

    @property
    def left_s(self) -> float:
        """Seconds left to the step, without those for ending what it started."""
        return max(1.0, self.until - time.monotonic() - STOP_S)

    def pytest(self, *arguments: str) -> list[str]:
        """Return the command line of a separate pytest.

        It waits for the GPU no longer than the step may take.
        """
        return [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-rs",
                *PLUGINS,
                f"--vllm-limit=gpu-wait={0.8 * self.left_s:.0f}",
            ),
            *(f"--vllm-env={self.env}", f"--vllm-device={self.device}", *arguments),
        ]

    @contextlib.contextmanager
    def started(
        self, *arguments: str, variables: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[subprocess.Popen[str]]:
        """Start pytest with additional environment variables, and kill it at the end of the block."""
        command = self.pytest(*arguments)
        pipe = subprocess.PIPE
        environment = {**os.environ, **variables, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run_shared(self, *arguments: str) -> Facts:
        """Run tests in workers that share the GPU, with each result in the ledger.

        What the ledger has already is not run.
        """
        variables = {gpu_ledger.WHERE: json.dumps(dataclasses.asdict(self.where))}
        workers = ("-n", str(self.jobs), "--dist", "loadgroup") if self.jobs > 1 else ()
        shared = (f"--vllm-limit=gpu-runs={self.jobs}", "--vllm-limit=engines=2")
        plugin = ("-p", "benchmarks.gpu_ledger")
        ran = self.run(*plugin, *workers, *shared, *arguments, variables=variables)
        if ran["status"] == pytest.ExitCode.NO_TESTS_COLLECTED:
            ran["status"] = 0  # the ledger has all of them
        return ran

    def run(self, *arguments: str, variables: Mapping[str, str] = MappingProxyType({})) -> Facts:
        """Run a pytest to its end. Return its status, seconds and last lines."""
        begun = time.monotonic()
        with self.started(*arguments, variables=variables) as process:
            return self.ended(process, begun)

    def ended(self, process: subprocess.Popen[str], begun: float) -> Facts:
        """Wait for a pytest, which is interrupted when the step's time is used up.

        Raises ``LeftOut`` if it skipped all tests.
        """
        cut_off = False
        try:
            out, _ = process.communicate(timeout=self.left_s)
        except subprocess.TimeoutExpired:
            cut_off = True
            process.send_signal(signal.SIGINT)
            try:
                out, _ = process.communicate(timeout=STOP_S / 2)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
        skipped = re.search(r"^SKIPPED \[\d+\] \S+: (.*)$", out, re.M)
        if skipped and re.fullmatch(r"\d+ skipped in .*", out.splitlines()[-1]):
            raise LeftOut(skipped[1])
        status = process.returncode or int(cut_off)
        seconds = round(time.monotonic() - begun, 1)
        return {
            "status": status,
            "cut_off": cut_off,
            "seconds": seconds,
            "end": strip_machine_paths(out.strip()).splitlines()[-6:],
        }

    def file(self, name: str, text: str) -> str:
        place = self.folder / name
        place.write_text(text)
        return str(place)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session outside pytest, for probes."""
        timeouts = Timeouts()
        settings = Settings(environments=(self.env,), device=self.device)
        session = Session(
            settings,
            lambda phase, seconds: Deadline.after(
                phase, min(self.left_s, seconds or timeouts.of(phase))
            ),
            print,
        )
        try:
            yield session
        finally:
            session.close()

    def cuda_device(self) -> nvml.Gpu:
        """Return the GPU. Raises ``LeftOut`` on another device."""
        if self.gpu is None:
            raise LeftOut(f"needs CUDA; this is a rehearsal on {self.device}")
        return self.gpu


def facts(bench: Bench) -> Facts:
    """Collect the driver, the GPUs, and the time that NVML queries take."""
    machine = nvml.query_machine()
    if isinstance(machine, str):
        raise LeftOut(machine)
    device = bench.gpu
    return {
        "machine": dataclasses.asdict(machine),
        "usable": [dataclasses.asdict(gpu) for gpu in usable().gpus],
        "used": device and dataclasses.asdict(device),
        "look_ms": _median_ms(nvml.query_machine),
        **(
            {"usage_ms": _median_ms(lambda: nvml.usage(device.uuid)), "usage": str(_usage(device))}
            if device
            else {}
        ),
    }


def first_start(bench: Bench) -> Facts:
    """Start the first engine: import vLLM, make the checkpoint and compile kernels, so that no
    later step has to."""
    return bench.run(
        bench.file("test_quick.py", QUICK), f"--vllm-timeout=first-start={0.9 * bench.left_s:.0f}"
    )


def fork(bench: Bench) -> Facts:
    """Check whether the warm agent forks, and use a CUDA tensor in a child."""
    bench.cuda_device()
    with bench.session() as session:
        target = session.target(bench.env)
        child = session.probe(target)
        file = bench.file("probe.py", PROBE)
        allowed = Deadline.after("probe", bench.left_s)
        tensor = child.request("call", allowed, file=file, function="tensor", arguments={})
        return {"start_method": child.start_method, "target": target.describe(), "tensor": tensor}


def release(bench: Bench) -> Facts:
    """Measure how long the driver keeps the memory of a killed process, as (milliseconds since, MiB
    used)."""
    device = bench.cuda_device()
    with bench.session() as session:
        before = _usage(device)
        child = session.probe(session.target(bench.env))
        file = bench.file("probe.py", PROBE)
        size = {"mib": min(4096, before.free // MIB // 4)}
        allowed = Deadline.after("probe", bench.left_s)
        pid = child.request("call", allowed, file=file, function="hold", arguments=size)
        used_before, curve, begun = _usage(device).used, [], time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() - begun < min(10, bench.left_s):
            curve.append((round(1000 * (time.monotonic() - begun)), _usage(device).used // MIB))
            if curve[-1][1] <= before.used // MIB + 64:
                break
        return {
            "before_mib": before.used // MIB,
            "held_mib": used_before // MIB,
            "curve": curve[:: max(1, len(curve) // 50)],
        }


def cases(bench: Bench) -> Facts:
    """Run the cases, those with engines first, because a probe rarely depends on the device."""
    return bench.run_shared(*(f"cases/{name}" for name in bench.cases))


def conformance(bench: Bench) -> Facts:
    """Run the part of the conformance suite for one GPU.

    The step fails if a failure is not explained by a known fault of vLLM.
    """
    report, suite = bench.folder / "conformance.xml", ROOT / "conformance"
    ran = bench.run_shared(
        *(str(suite / name) for name in bench.suite), f"--junitxml={report}", "--timeout=900"
    )
    if ran["status"] == 0:
        return ran
    if not report.exists():
        raise RuntimeError(f"no report: {ran}")
    known = read_known(suite / "known.toml")
    found = unexplained([read_report(bench.env, report)], known)
    open_ones = [f"{cell.section}: {cell.check}" for _, cell in found]
    return {**ran, "status": int(bool(open_ones)), "unexplained": open_ones}


def flashinfer(bench: Bench) -> Facts:
    """Start an engine that samples with FlashInfer, which may have to compile its kernels."""
    bench.cuda_device()
    return bench.run(
        bench.file("test_sampled.py", SAMPLED),
        f"--vllm-timeout=start={0.9 * bench.left_s:.0f}",
        variables={"VLLM_USE_FLASHINFER_SAMPLER": "1"},
    )


def core_killed(bench: Bench) -> Facts:
    """Kill an engine core during a request; the next test must get an engine."""
    return bench.run(bench.file("test_core_killed.py", KILLED_CORE))


def pytest_killed(bench: Bench) -> Facts:
    """Kill pytest while its engine holds the GPU; another pytest must get the GPU, and the engine
    must end."""
    ready = bench.folder / "ready"
    with bench.started(bench.file("test_stays.py", STAYS.format(ready=str(ready)))) as process:
        deadline = Deadline.after("start", bench.left_s / 2)
        while not ready.exists() and process.poll() is None and not deadline.passed:
            time.sleep(0.2)  # another process writes the file
        if not ready.exists():
            raise RuntimeError(f"the first pytest was not ready after {deadline.allowed_s:.0f} s")
        engine = [
            found for pid in ready.read_text().split() if (found := process_tree.find(int(pid)))
        ]
    ran = bench.run(bench.file("test_quick.py", QUICK))
    living = process_tree.wait_until_gone(engine, bench.left_s)
    if living:
        raise RuntimeError(
            f"the killed pytest's engine still runs: {', '.join(map(process_tree.describe, living))}"
        )
    return ran


def tenant(bench: Bench) -> Facts:
    """Start an engine while another process holds half of the free memory, or what an engine leaves
    of it."""
    device = bench.cuda_device()
    target = built_target(bench.env, bench.device)
    python = bench.torch or (target.python if target else None)
    if python is None:
        raise LeftOut("needs --torch: the environment is not built")
    free = _usage(device).free // MIB
    size = min(free // 2, free - ENGINE_MIB)
    if size < 512:
        raise LeftOut(f"{free} MiB are free, which is too little for an engine and a tenant")
    command = [str(python), "-c", TENANT.format(mib=size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        try:
            if not select.select([other.stdout], [], [], bench.left_s / 2)[0]:
                raise RuntimeError("the tenant held nothing in half of the step's time")
            if other.stdout.readline().strip() != "held":
                raise RuntimeError(f"the tenant ended with {other.wait(10)}")
            return {
                "tenant_mib": size,
                "free_mib": free,
                **bench.run(bench.file("test_quick.py", QUICK)),
            }
        finally:
            other.kill()


def two_at_once(bench: Bench) -> Facts:
    """Run two pytests at once, which take turns or share the GPU."""
    begun = time.monotonic()
    quick = bench.file("test_quick.py", QUICK)
    with bench.started(quick) as first, bench.started(quick) as second:
        ended = [bench.ended(process, begun) for process in (first, second)]
    return {"status": max(abs(entry["status"]) for entry in ended), "runs": ended}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step and its share of 25 minutes. ``least_s``: seconds without which it is not begun.

    ``engine``: whether it starts an engine.
    """

    do: Callable[[Bench], Facts]
    minutes: float
    necessary: bool = False
    least_s: float = 30
    engine: bool = True


STEPS: Mapping[str, Step] = {
    "facts": Step(facts, 0.5, necessary=True, least_s=5, engine=False),
    "first-start": Step(first_start, 4, necessary=True, least_s=60),
    "fork": Step(fork, 1, necessary=True, engine=False),
    "cases": Step(cases, 10, necessary=True, least_s=60),
    "core-killed": Step(core_killed, 1.5, necessary=True),
    "pytest-killed": Step(pytest_killed, 1.5, necessary=True),
    "conformance": Step(conformance, 3, least_s=60),
    "flashinfer": Step(flashinfer, 1.5),
    "release": Step(release, 0.5, engine=False),
    "tenant": Step(tenant, 0.75),
    "two-at-once": Step(two_at_once, 0.75),
}
"""The steps, the most important first.

Their minutes add up to 25; with another ``--minutes`` they scale.
"""
PLANNED_MINUTES = 25
FIRST_START = "first-start"
ALWAYS = ("facts", FIRST_START, "cases", "conformance")
"""Steps that every run needs, or that know themselves what is missing."""
NO_ENGINE: Facts = {"outcome": "left out", "why": f"{FIRST_START} failed", "seconds": 0.0}
"""The result of a step that needs an engine if none has started: it would use up the time of the
others."""


def rehearsal(device: str) -> str | None:
    """Return why this run says nothing about GPUs, or None if it runs on one."""
    if device != "gpu":
        return f"the device is {device}"
    if "FAKE_NVML" in os.environ or not (
        Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
    ):
        return "NVML is a stand-in: this machine has no GPU"
    return None


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    why = rehearsal(options.device)
    try:
        gpu = choose_gpu(options.env) if options.device == "gpu" else None
    except RegressError as error:
        print(f"nothing was run: {error}", file=sys.stderr)
        return 2
    if gpu is not None:  # also for processes that this one starts
        os.environ |= {VISIBLE: gpu.selector, ORDER: PCI}
    said = "" if why is None else f"Nothing here was seen on a GPU: {why}."
    where = gpu_ledger.Where(
        str(options.ledger.resolve()),
        release_of(options.env, options.device),
        gpu.name if gpu else options.device,
        said,
    )
    ledger = where.open()
    steps: dict[str, Facts] = {}
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            options.env,
            options.device,
            options.torch,
            Path(folder),
            end,
            where,
            gpu,
            options.cases or by_worth(ledger, options.env, options.device),
            options.suite,
            options.jobs,
        )
        for name, limit_s in limits(options.only, lambda: end - time.monotonic(), options.minutes):
            known = ledger.entries.get(where.name(f"step {name}"))
            if name not in ALWAYS and known is not None and known.outcome == "done":
                continue
            no_engine = STEPS[name].engine and steps.get(FIRST_START, {}).get("outcome") == "failed"
            entry = steps[name] = NO_ENGINE if no_engine else step(bench, STEPS[name], limit_s)
            print(
                f"{name}: {entry['outcome']} in {entry['seconds']:.1f} s {entry.get('why', '')}",
                flush=True,
            )
            ledger = where.open()  # a pytest has added to it
            found = json.loads(json.dumps(entry.get("found", {}), default=str))
            text = entry.get("why", "")
            ledger.add(
                where.name(f"step {name}"),
                gpu_ledger.entry(entry["outcome"], text, entry["seconds"], found),
            )
    missing = [
        name
        for name in steps
        if STEPS[name].necessary and steps[name]["outcome"] in ("left out", "cut off")
    ]
    if missing:
        print(f"necessary, and left out or cut off: {', '.join(missing)}")
    if said:
        print(said)
    return int(bool(missing) or any(outcome["outcome"] == "failed" for outcome in steps.values()))


def release_of(env: str, device: str) -> str:
    """Return the version of vLLM in an environment; its name if it is not built."""
    target = built_target(env, device)
    distribution = target.installed.vllm_distribution if target else None
    return target.installed.packages[distribution] if target and distribution else env


def by_worth(ledger: Store[gpu_ledger.Entry], env: str, device: str) -> tuple[str, ...]:
    """Return the cases for this device: first those that start engines, and of these first the ones
    that the ledger has for no release."""
    seen = {name.split("/")[1] for name in ledger if name.startswith("cases/")}

    def worth(case: Case) -> tuple[bool, bool]:
        tests = "".join(path.read_text() for path in case.path.glob("test_*.py"))
        return "vllm_engine" not in tests and "vllm_server" not in tests, case.id in seen

    cases = [case for case in load_all_cases(ROOT / "cases") if device in case.devices]
    return tuple(case.id for case in sorted(cases, key=worth))


def choose_gpu(env: str) -> nvml.Gpu:
    """Return the first GPU or MIG device that the environment can use.

    Raises ``UsageError`` if there is none.
    """
    check_gpu_fits([env])
    target = built_target(env, "gpu")
    return Placement(print).devices(target)[0] if target else usable().gpus[0]


def limits(
    names: Sequence[str], left_s: Callable[[], float], minutes: float
) -> Iterator[tuple[str, float]]:
    """Yield each step, by rank, with the seconds that it may take: all that is left but the shares
    of the steps after it."""
    ranked = [name for name in STEPS if name in names]
    for number, name in enumerate(ranked):
        shares = sum(STEPS[later].minutes for later in ranked[number + 1 :])
        yield name, left_s() - 60 * shares * minutes / PLANNED_MINUTES


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line. Exits if it is invalid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", required=True, help="environment or interpreter under test")
    parser.add_argument(
        "--torch",
        type=Path,
        help="an interpreter with a CUDA build of torch (default: that of --env)",
    )
    parser.add_argument("--device", default="gpu", choices=("gpu", "sim", "cpu"))
    parser.add_argument(
        "--minutes", type=float, default=PLANNED_MINUTES, help="for all steps together"
    )
    for name, default in (("only", tuple(STEPS)), ("cases", ()), ("suite", ONE_GPU)):
        parser.add_argument(
            f"--{name}",
            type=lambda text: tuple(text.split(",")),
            default=default,
            help=",".join(default) or "all that the ledger does not have",
        )
    parser.add_argument("--jobs", type=int, default=JOBS, help="workers that share the GPU")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    options = parser.parse_args(arguments)
    if unknown := set(options.only) - STEPS.keys():
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    why = rehearsal(options.device)
    if why is not None and RECORDS in options.ledger.resolve().parents:
        parser.error(
            f"this is a rehearsal ({why}) and no record: name a file outside docs/records by --ledger"
        )
    return options


def step(bench: Bench, ranked: Step, limit_s: float) -> Facts:
    """Run a step. Return its result, or why it failed, was cut off or was left out.

    A pytest that exits with an error fails the step.
    """
    begun = time.monotonic()
    try:
        if limit_s < ranked.least_s:
            raise LeftOut(
                f"it needs {ranked.least_s:.0f} s, and {max(0.0, limit_s):.0f} s are left to it"
            )
        collected = ranked.do(dataclasses.replace(bench, until=begun + limit_s))
        entry = {"outcome": "done", "found": collected}
        if status := collected.get("status"):
            entry |= {"outcome": "failed", "why": f"pytest ended with {status}"}
        elif collected.get("cut_off"):
            entry |= {"outcome": "cut off", "why": "it ran out of time before all tests had run"}
    except LeftOut as why:
        entry = {"outcome": "left out", "why": str(why)}
    except Exception as error:  # the next steps may still work
        entry = {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:4000]}
    return {**entry, "seconds": round(time.monotonic() - begun, 1), "limit_s": round(limit_s, 1)}


def _usage(device: nvml.Gpu) -> nvml.Usage:
    now = nvml.usage(device.uuid)
    if isinstance(now, str):
        raise RuntimeError(now)
    return now


def _median_ms(ask: Callable[[], object], times: int = 20) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        ask()
        taken.append(1000 * (time.perf_counter() - begun))
    return round(statistics.median(taken), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
