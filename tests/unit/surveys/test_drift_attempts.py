"""What counts as a failure of a release, and what as one of this machine."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.environments.uv import build_error
from pytest_vllm_regress.errors import BuildError, UsageError
from pytest_vllm_regress.surveys import drift
from pytest_vllm_regress.surveys.drift import (
    RELEASE_BYTES,
    Attempt,
    DatedRelease,
    limited_downloads,
)
from pytest_vllm_regress.surveys.drift_record import Stage
from pytest_vllm_regress.util.sizes import GIB

RELEASE = DatedRelease("0.8.5", datetime.date(2026, 11, 24))


def failing(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    def resolve(*arguments: object) -> dict[str, str]:
        raise build_error("resolving vllm==0.8.5", output, 1)

    monkeypatch.setattr(drift, "resolved_versions", resolve)


@pytest.mark.parametrize(
    "output",
    [
        "No solution found when resolving dependencies",
        "error: Failed to build `outlines`\nthe build backend returned an error",
    ],
)
def test_packages_that_do_not_fit_or_build_are_a_failure_of_the_release(
    monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    failing(monkeypatch, output)
    attempt = RELEASE.attempt({}, lambda line: None)
    assert attempt.failed is Stage.RESOLVE and attempt.reason == output.splitlines()[-1]


def test_a_requirement_that_cannot_be_met_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(
        monkeypatch,
        "error: No solution found when resolving dependencies\n"
        "  cause: Because there is no version of xgrammar==0.1.16 and vllm==0.8.2 depends on it, vllm==0.8.2 cannot be used.\n"
        "         And because you require vllm==0.8.2, your requirements are unsatisfiable.",
    )
    reason = RELEASE.attempt({}, lambda line: None).reason
    assert (
        reason
        == "Because there is no version of xgrammar==0.1.16 and vllm==0.8.2 depends on it, vllm==0.8.2 cannot be used."
    )


@pytest.mark.parametrize(
    "output", ["No space left on device (os error 28)", "dns error: no such host"]
)
def test_a_full_disk_and_an_absent_index_are_no_failure_of_the_release(
    monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    failing(monkeypatch, output)
    with pytest.raises(BuildError, match="resolving vllm"):
        RELEASE.attempt({}, lambda line: None)


def test_an_attempt_passes_the_stages_before_the_one_that_failed() -> None:
    assert Attempt(Stage.SERVE).passes(Stage.IMPORT)
    assert not Attempt(Stage.SERVE).passes(Stage.SERVE)
    assert not Attempt(Stage.IMPORT).passes(Stage.SERVE)
    assert Attempt().passes(Stage.ANSWER)


def test_downloads_are_removed_when_another_release_might_not_fit_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    emptied: list[str] = []

    def run(words: Sequence[str], doing: str) -> None:
        assert words[:2] == ["cache", "clean"]
        emptied.append(os.environ["UV_CACHE_DIR"])

    downloaded = [5 * GIB, 7 * GIB]
    monkeypatch.setattr(uv, "run", run)
    monkeypatch.setattr(drift, "disk_usage", lambda folder: downloaded.pop(0))
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", "/of/the/user")
    with limited_downloads(20 * GIB) as make_room:
        make_room()
        assert emptied == []
        make_room()
        assert len(emptied) == 1
    (folder,) = set(emptied)
    assert Path(folder).is_relative_to(tmp_path) and len(emptied) == 2
    assert os.environ["UV_CACHE_DIR"] == "/of/the/user"


def test_a_limit_that_is_too_small_for_a_release_is_refused() -> None:
    with (
        pytest.raises(UsageError, match="--disk: 13 GiB are too few"),
        limited_downloads(RELEASE_BYTES - GIB),
    ):
        pass
