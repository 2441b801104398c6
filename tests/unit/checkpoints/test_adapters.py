"""Forged LoRA adapters: shapes that fit the forged model, one folder for equal ones, and broken ones that are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pytest_vllm_regress.checkpoints.adapters import Adapter, ensure_adapter
from pytest_vllm_regress.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.errors import UsageError


@pytest.mark.parametrize("head", [32, 64])
def test_matrices_fit_the_model(head: int, tmp_path: Path) -> None:
    base = ensure_checkpoint("text", tmp_path, head=head)
    place = ensure_adapter(Adapter("one", rank=4), base, tmp_path)
    model = load_file(base / "model.safetensors")
    config = json.loads((place / "adapter_config.json").read_text())
    weights = load_file(place / "adapter_model.safetensors")
    assert place.is_absolute() and config["r"] == 4 and config["target_modules"] == ["q_proj", "v_proj"]
    for name in [name for name in weights if ".lora_A." in name]:
        changed = model[name.removeprefix("base_model.model.").replace("lora_A.", "")]
        down, up = weights[name], weights[name.replace("lora_A", "lora_B")]
        assert (up @ down).shape == changed.shape and down.shape[0] == 4 and abs(up @ down).max() > 0
    assert len(weights) == 2 * sum(name.endswith(("q_proj.weight", "v_proj.weight")) for name in model)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return ensure_checkpoint("text", tmp_path)


def test_a_name_is_no_part_of_an_adapter(base: Path, tmp_path: Path) -> None:
    assert ensure_adapter(Adapter("a"), base, tmp_path) == ensure_adapter(Adapter("b"), base, tmp_path)
    others = {
        ensure_adapter(each, base, tmp_path) for each in (Adapter("a"), Adapter("a", seed=1), Adapter("a", rank=4))
    }
    assert len(others) == 3


def test_what_was_lost_is_written_again(base: Path, tmp_path: Path) -> None:
    weights = ensure_adapter(Adapter("a"), base, tmp_path) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    assert ensure_adapter(Adapter("a"), base, tmp_path) == weights.parent and weights.read_bytes() == whole


def test_broken_is_unreadable(base: Path, tmp_path: Path) -> None:
    with pytest.raises(SafetensorError):
        load_file(ensure_adapter(Adapter("a", broken=True), base, tmp_path) / "adapter_model.safetensors")


def test_a_model_of_unknown_sizes_has_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say its sizes"):
        ensure_adapter(Adapter("a"), tmp_path / "nothing", tmp_path)


@pytest.mark.parametrize("values", [{"name": ""}, {"name": "a", "rank": 0}, {"name": "a", "seed": -1}])
def test_bad_values_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="an adapter has"):
        Adapter(**values)  # type: ignore[arg-type]
