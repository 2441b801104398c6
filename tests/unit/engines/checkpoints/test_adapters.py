"""Forged LoRA adapters: shapes that fit the model, one folder for equal adapters, and broken
adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pytest_vllm_regress.engines.checkpoints.adapters import Adapter, ensure_adapter
from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.errors import UsageError


@pytest.mark.parametrize("head", [32, 64])
def test_matrices_fit_the_model(head: int, checkpoints: Path, tmp_path: Path) -> None:
    base = ensure_checkpoint("text", checkpoints, head=head)
    place = ensure_adapter(Adapter("one", rank=4), base, tmp_path)
    model = load_file(base / "model.safetensors")
    config = json.loads((place / "adapter_config.json").read_text())
    weights = load_file(place / "adapter_model.safetensors")
    assert (
        place.is_absolute()
        and config["r"] == 4
        and config["target_modules"] == ["q_proj", "v_proj"]
    )
    for name in [name for name in weights if ".lora_A." in name]:
        changed = model[name.removeprefix("base_model.model.").replace("lora_A.", "")]
        down, up = weights[name], weights[name.replace("lora_A", "lora_B")]
        assert (
            (up @ down).shape == changed.shape and down.shape[0] == 4 and abs(up @ down).max() > 0
        )
    assert len(weights) == 2 * sum(
        name.endswith(("q_proj.weight", "v_proj.weight")) for name in model
    )


@pytest.fixture
def base(checkpoints: Path) -> Path:
    return ensure_checkpoint("text", checkpoints)


def test_adapters_with_other_names_share_a_folder(base: Path, tmp_path: Path) -> None:
    assert ensure_adapter(Adapter("a"), base, tmp_path) == ensure_adapter(
        Adapter("b"), base, tmp_path
    )
    others = {
        ensure_adapter(adapter, base, tmp_path)
        for adapter in (Adapter("a"), Adapter("a", seed=1), Adapter("a", rank=4))
    }
    assert len(others) == 3


def test_missing_files_are_written_again(base: Path, tmp_path: Path) -> None:
    weights = ensure_adapter(Adapter("a"), base, tmp_path) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    assert (
        ensure_adapter(Adapter("a"), base, tmp_path) == weights.parent
        and weights.read_bytes() == whole
    )


def test_a_broken_adapter_is_unreadable(base: Path, tmp_path: Path) -> None:
    with pytest.raises(SafetensorError):
        load_file(
            ensure_adapter(Adapter("a", broken=True), base, tmp_path) / "adapter_model.safetensors"
        )


def test_a_model_without_sizes_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not have the sizes"):
        ensure_adapter(Adapter("a"), tmp_path / "nothing", tmp_path)


@pytest.mark.parametrize(
    "values", [{"name": ""}, {"name": "a", "rank": 0}, {"name": "a", "seed": -1}]
)
def test_bad_values_are_usage_errors(values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="an adapter needs"):
        Adapter(**values)  # type: ignore[arg-type]
