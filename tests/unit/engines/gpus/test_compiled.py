"""Compiled kernels are kept per version of vLLM and removed if no run uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.engines.gpus import compiled

Prune = Callable[..., str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernels of two versions, those of 0.8.5 last used ten days ago."""
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    for version, age_s in (("0.8.5", 10 * 86400), ("0.9.2", 0)):
        with compiled.hold(compiled.folder_for(version)):
            (compiled.folder_for(version) / "kernel").write_bytes(b"x" * 100_000)
        lock = tmp_path / "compiled" / f"vllm-{version}.lock"
        os.utime(lock, (lock.stat().st_mtime - age_s,) * 2)
    return tmp_path


def names() -> list[str]:
    return [kernels.name for kernels in compiled.list_kernels()]


@pytest.fixture
def prune(capsys: pytest.CaptureFixture[str]) -> Prune:
    """Return the output of `vllm-regress env prune`."""

    def run(*arguments: str) -> str:
        assert cli.main(["env", "prune", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_kernels_are_listed() -> None:
    assert names() == ["vllm-0.8.5", "vllm-0.9.2"]
    assert all(kernels.size >= 100_000 for kernels in compiled.list_kernels())


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ([], ["vllm-0.8.5", "vllm-0.9.2"]),  # nothing indicates that they are unused
        (["vllm-0.9.2"], ["vllm-0.8.5"]),
        (["--older-than", "5"], ["vllm-0.9.2"]),
        (["--older-than", "0"], []),
    ],
)
def test_prune_removes_selected_kernels(
    arguments: list[str], left: list[str], prune: Prune
) -> None:
    output = prune(*arguments)
    assert names() == left
    assert output.count("compiled kernels: removed") == 2 - len(left)


def test_a_name_that_is_not_cached_is_reported_after_the_others_are_removed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["env", "prune", "vllm-0.9.2", "vllm-9.9"]) == 2
    assert names() == ["vllm-0.8.5"]
    assert "vllm-9.9: not in the cache, which had vllm-0.8.5, vllm-0.9.2" in capsys.readouterr().err


def test_kernels_in_use_are_kept(cache: Path, prune: Prune) -> None:
    with compiled.hold(compiled.folder_for("0.9.2")), compiled.hold(compiled.folder_for("0.9.2")):
        output = prune("--older-than", "0")
        assert "vllm-0.8.5, compiled kernels: removed" in output
        assert "vllm-0.9.2, compiled kernels: in use, kept" in output
        assert (cache / "compiled" / "vllm-0.9.2" / "kernel").exists()
    prune("--older-than", "0")
    assert names() == []


def test_a_run_after_the_removal_gets_a_folder(cache: Path, prune: Prune) -> None:
    prune("--older-than", "0")
    with compiled.hold(compiled.folder_for("0.9.2")):
        assert (cache / "compiled" / "vllm-0.9.2").is_dir()
