"""Kernels that engines compiled: kept by version of vLLM, removed where nobody uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.gpus import compiled

Prune = Callable[..., str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Kernels of two versions, those of 0.8.5 last used ten days ago."""
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    for version, age_s in (("0.8.5", 10 * 86400), ("0.9.2", 0)):
        with compiled.held(compiled.place(version)):
            (compiled.place(version) / "kernel").write_bytes(b"x" * 100_000)
        lock = tmp_path / "compiled" / f"vllm-{version}.lock"
        os.utime(lock, (lock.stat().st_mtime - age_s,) * 2)
    return tmp_path


def names() -> list[str]:
    return [each.name for each in compiled.listing()]


@pytest.fixture
def prune(capsys: pytest.CaptureFixture[str]) -> Prune:
    """``prune("--all")``: what `vllm-regress env prune` says."""

    def run(*arguments: str) -> str:
        assert cli.main(["env", "prune", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_what_is_there() -> None:
    assert names() == ["vllm-0.8.5", "vllm-0.9.2"]
    assert all(each.size >= 100_000 for each in compiled.listing())


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ([], ["vllm-0.8.5", "vllm-0.9.2"]),  # nothing says that they are of no use any more
        (["vllm-0.9.2"], ["vllm-0.8.5"]),
        (["--older-than", "5"], ["vllm-0.9.2"]),
        (["--all"], []),
    ],
)
def test_prune(arguments: list[str], left: list[str], prune: Prune) -> None:
    said = prune(*arguments)
    assert names() == left
    assert said.count("compiled kernels: removed") == 2 - len(left)


def test_what_a_run_uses_stays(cache: Path, prune: Prune) -> None:
    with compiled.held(compiled.place("0.9.2")), compiled.held(compiled.place("0.9.2")):
        said = prune("--all")
        assert "vllm-0.8.5, compiled kernels: removed" in said
        assert "vllm-0.9.2, compiled kernels: in use, kept" in said
        assert (cache / "compiled" / "vllm-0.9.2" / "kernel").exists()
    prune("--all")
    assert names() == []


def test_a_run_that_comes_after_finds_its_folder(cache: Path, prune: Prune) -> None:
    prune("--all")
    with compiled.held(compiled.place("0.9.2")):
        assert (cache / "compiled" / "vllm-0.9.2").is_dir()
