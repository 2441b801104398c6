"""Limits of memory, programs that cannot be executed, files that never end, and findings of somebody
else: a message, and nothing done by halves."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.errors import BuildError, BuildFailure, UsageError
from pytest_vllm_regress.fuzz.api.api_request import ApiRequest
from pytest_vllm_regress.fuzz.api.servers import ApiLane
from pytest_vllm_regress.util.files import peek
from tests.hostile.test_choices import fake
from tests.integration.environments.conftest import RECIPE, Fake

__all__ = ["fake"]

KERNEL_LOG = Path("/proc/kmsg")


def command(
    *words: str, limit: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_vllm_regress", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=limit,
    )


@pytest.fixture
def kernel_log() -> Path:
    try:
        os.close(os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"{KERNEL_LOG}: {error.strerror}")
    return KERNEL_LOG


def test_a_log_that_the_kernel_goes_on_writing_is_read_as_far_as_it_is(kernel_log: Path) -> None:
    for _ in range(2):  # the first reader takes what is there
        done = command("explain", str(kernel_log))
        assert done.returncode in (0, 1, 5)  # 5: the kernel has ended a process for want of memory
        assert "Traceback" not in done.stderr
    assert peek(kernel_log, 1000) == ""


@pytest.mark.parametrize("mebibytes", [100, 110, 120])
def test_a_limit_of_memory_is_named(mebibytes: int) -> None:
    size = mebibytes * 2**20
    done = command(
        "audit",
        "vllm==0.8.4",
        limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "needs more memory than it may use" in done.stderr


@pytest.mark.parametrize("harm", ["no permission", "no program", "directory"])
def test_a_uv_that_cannot_be_executed_is_no_folder_that_cannot_be_written(
    fake: Fake, harm: str
) -> None:
    if harm == "no permission":
        fake.program.chmod(0o644)
    elif harm == "no program":
        fake.program.write_bytes(b"\x7fELF nothing")
    else:
        fake.program.unlink()
        fake.program.mkdir()
    with pytest.raises(BuildError, match=r"uv cannot be executed.*install it again") as caught:
        EnvironmentCache().ensure(RECIPE)
    assert caught.value.failure is BuildFailure.NO_UV
    assert "VLLM_REGRESS_CACHE" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "/collective_rpc",
        "/collective_rpc/",
        "/collective_rpc?x=1",
        "/%63ollective_rpc",
        "/v1/../collective_rpc",
        "/./update_weights",
        "//example.org/v1/models",
        "/\\example.org",
    ],
)
def test_a_finding_cannot_send_what_changes_the_server(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(str(request.url))
        return httpx.Response(200, json={})

    client = httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer))
    lane: Any = SimpleNamespace(_seconds=5)
    server: Any = SimpleNamespace(client=client, adapter="")
    question = ApiRequest("text", "POST", path, "/v1/models", "{}")
    with pytest.raises(UsageError, match="not sent"):
        ApiLane._send(lane, server, question)
    assert sent == []
    fine = ApiRequest("text", "GET", "/v1/models/..%2Fx", "/v1/models/{model_id}")
    ApiLane._send(lane, server, fine)
    assert len(sent) == 1
