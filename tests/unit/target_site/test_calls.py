"""The frames that report exceptions of probes to the controller."""

from __future__ import annotations

import pytest
from vllm_regress_target.calls import failure

from pytest_vllm_regress.engines.processes.failures import RemoteFailure
from pytest_vllm_regress.errors import Cause, Unsupported

NO_DEVICE = RuntimeError("Failed to infer device type, please set the environment variable")


def test_a_vllm_that_does_not_know_the_simulated_device_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_DEVICE", "sim")
    refusal = RemoteFailure.decode(failure(NO_DEVICE)).refusal()
    assert isinstance(refusal, Unsupported)
    assert refusal.cause is Cause.HARNESS


def test_without_a_gpu_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_REGRESS_DEVICE", "gpu")
    assert RemoteFailure.decode(failure(NO_DEVICE)).refusal() is None
