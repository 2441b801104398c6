"""The checkpoint forge: its files, their reproducibility, and the repair of damaged checkpoints."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pytest_vllm_regress.engines.checkpoints.forge import (
    KINDS,
    architectures_of,
    ensure_checkpoint,
    weight_file,
)
from pytest_vllm_regress.engines.checkpoints.pcg64 import top_bits
from pytest_vllm_regress.errors import UsageError


def contents(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in place.iterdir()}


@pytest.mark.parametrize("kind", ["text", "vision", "experts"])
def test_files_of_a_checkpoint_are_consistent(kind: str, checkpoints: Path) -> None:
    place = ensure_checkpoint(kind, checkpoints)
    config = json.loads((place / "config.json").read_text())
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    assert place.is_absolute() and tuple(config["architectures"]) == architectures_of(str(place))
    ids = [
        *tokenizer["model"]["vocab"].values(),
        *(token["id"] for token in tokenizer["added_tokens"]),
    ]
    assert sorted(ids) == list(range(len(ids))) and len(ids) <= config["vocab_size"]
    assert json.loads((place / "vocab.json").read_text()) == tokenizer["model"]["vocab"]
    vocabulary = tokenizer["model"]["vocab"]
    for merge in tokenizer["model"]["merges"]:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= vocabulary.keys()
    specials = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert (
        config["eos_token_id"]
        == specials[json.loads((place / "tokenizer_config.json").read_text())["eos_token"]]
    )
    weights = load_file(place / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (
        config["vocab_size"],
        config["hidden_size"],
    )
    assert weights["lm_head.weight"].std() > 0 and all(
        np.isfinite(tensor).all() for tensor in weights.values()
    )
    layers = {name.split(".")[2] for name in weights if name.startswith("model.layers.")}
    assert len(layers) == config["num_hidden_layers"]


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3, 2**200 + 5])
def test_bits_are_those_of_numpy(seed: int) -> None:
    raw = np.random.PCG64(seed).random_raw(1000)
    assert [*itertools.islice(top_bits(seed), 1000)] == [int(bits) >> 40 for bits in raw]


def test_weights_have_unit_gain_and_norms_are_one(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(weight_file({"a.weight": (50, 400), "b.weight": (9,), "c.bias": (999,)}, 3))
    weights = load_file(file)
    assert weights["a.weight"].std() == pytest.approx(1 / 20, rel=0.02)
    assert weights["c.bias"].std() == pytest.approx(0.02, rel=0.05)
    assert (weights["b.weight"] == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_forged_once(kind: str, checkpoints: Path) -> None:
    first = ensure_checkpoint(kind, checkpoints)
    weights = (first / "model.safetensors").stat().st_ino
    assert ensure_checkpoint(kind, checkpoints) == first
    assert (first / "model.safetensors").stat().st_ino == weights


@pytest.mark.parametrize("kind", ["text", "draft", "mistral"])
def test_a_kind_always_gives_equal_bytes(kind: str, checkpoints: Path, tmp_path: Path) -> None:
    first, second = (ensure_checkpoint(kind, root) for root in (checkpoints, tmp_path))
    assert first.name == second.name and contents(first) == contents(second)


@pytest.mark.parametrize("head", [32, 64])
@pytest.mark.parametrize("kind", ["text", "vision", "classifier", "sentencepiece", "experts"])
def test_heads_have_the_requested_width(kind: str, head: int, checkpoints: Path) -> None:
    place = ensure_checkpoint(kind, checkpoints, head=head)
    config, weights = (
        json.loads((place / "config.json").read_text()),
        load_file(place / "model.safetensors"),
    )
    assert config["hidden_size"] == head * config["num_attention_heads"]
    rows = {name: weights[f"model.layers.0.self_attn.{name}_proj.weight"].shape[0] for name in "qk"}
    assert rows == {
        "q": head * config["num_attention_heads"],
        "k": head * config["num_key_value_heads"],
    }
    if kind == "vision":
        assert sum(config["rope_scaling"]["mrope_section"]) == head // 2
        assert weights["visual.merger.mlp.2.weight"].shape[0] == config["hidden_size"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "merges.txt"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_damaged_checkpoint_is_repaired(
    name: str, damage: str, checkpoints: Path, tmp_path: Path
) -> None:
    place = shutil.copytree(
        forged := ensure_checkpoint("text", checkpoints), tmp_path / forged.name
    )
    intact = contents(place)
    if damage == "gone":
        (place / name).unlink()
    else:
        os.truncate(place / name, len(intact[name]) // 2)
    assert contents(ensure_checkpoint("text", tmp_path)) == intact
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_concurrent_writers_make_one_checkpoint(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: ensure_checkpoint("text", tmp_path), range(4)))
    assert len(places) == 1 and [path.name for path in tmp_path.iterdir()] == [places.pop().name]


def test_impossible_requests_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are text, vision"):
        ensure_checkpoint("smell", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="VLLM_REGRESS_CACHE"):
        ensure_checkpoint("text", tmp_path / "file")
