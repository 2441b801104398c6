"""The frames that report exceptions of probes to the controller."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.calls import failure

NO_DEVICE = RuntimeError("Failed to infer device type, please set the environment variable")


@pytest.mark.parametrize(
    ("device", "name", "claim"),
    [("sim", "Unsupported", {"device": "sim"}), ("gpu", "RuntimeError", {})],
)
def test_a_vllm_that_does_not_know_the_simulated_device_refuses(
    monkeypatch: pytest.MonkeyPatch, device: str, name: str, claim: dict[str, str]
) -> None:
    monkeypatch.setenv("VLLM_REGRESS_DEVICE", device)
    reply = failure(NO_DEVICE)
    assert (reply["type"].rpartition(".")[2], reply["claim"]) == (name, claim)
