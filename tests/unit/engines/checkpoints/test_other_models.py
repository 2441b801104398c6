"""Checkpoints other than dense decoders: their weights match their configurations, and they follow
scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from safetensors.numpy import load_file

from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.checkpoints.tokenizers import added_tokens


def forged(kind: str, root: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return a checkpoint, its configuration, and the shapes of its weights by name."""
    place = ensure_checkpoint(kind, root)
    shapes = {name: tensor.shape for name, tensor in load_file(place / "model.safetensors").items()}
    return place, json.loads((place / "config.json").read_text()), shapes


def test_every_layer_has_its_experts_and_no_dense_part(checkpoints: Path) -> None:
    _, config, shapes = forged("experts", checkpoints)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp."
        assert shapes[f"{at}gate.weight"] == (config["num_experts"], config["hidden_size"])
        numbers = {name.split(".")[5] for name in shapes if name.startswith(f"{at}experts.")}
        assert numbers == set(map(str, range(config["num_experts"])))
        narrow, wide = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
        assert shapes[f"{at}experts.0.up_proj.weight"] == (narrow, config["hidden_size"])
        assert shapes[f"{at}shared_expert.down_proj.weight"] == (config["hidden_size"], wide)
    assert not any(".mlp.up_proj" in name for name in shapes)
    assert config["num_experts_per_tok"] < config["num_experts"]


def test_a_state_has_the_size_of_the_configuration(checkpoints: Path) -> None:
    _, config, shapes = forged("mamba", checkpoints)
    wide, state = config["intermediate_size"], config["state_size"]
    assert wide == config["expand"] * config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        at = f"backbone.layers.{layer}.mixer."
        assert shapes[f"{at}A_log"] == (wide, state)
        assert shapes[f"{at}conv1d.weight"] == (wide, 1, config["conv_kernel"])
        assert shapes[f"{at}x_proj.weight"] == (config["time_step_rank"] + 2 * state, wide)
        assert shapes[f"{at}in_proj.weight"] == (2 * wide, config["hidden_size"])


def test_a_sound_fits_the_encoder(checkpoints: Path) -> None:
    place, config, shapes = forged("speech", checkpoints)
    features = json.loads((place / "preprocessor_config.json").read_text())
    assert (
        shapes["model.encoder.conv1.weight"][1]
        == config["num_mel_bins"]
        == features["feature_size"]
    )
    # the encoder's second convolution takes every other frame
    assert config["max_source_positions"] * 2 == features["nb_max_frames"]
    assert features["nb_max_frames"] * features["hop_length"] == features["n_samples"]
    for side, positions in (("encoder", "source"), ("decoder", "target")):
        assert (
            shapes[f"model.{side}.embed_positions.weight"][0]
            == config[f"max_{positions}_positions"]
        )
        layers = {name.split(".")[3] for name in shapes if name.startswith(f"model.{side}.layers.")}
        assert len(layers) == config[f"{side}_layers"]


def test_a_sound_of_a_chat_has_its_place_and_fits_the_encoder(checkpoints: Path) -> None:
    place, config, shapes = forged("audio", checkpoints)
    features = json.loads((place / "preprocessor_config.json").read_text())
    encoder = config["audio_config"]
    assert (
        shapes["audio_tower.conv1.weight"][1] == encoder["num_mel_bins"] == features["feature_size"]
    )
    assert encoder["max_source_positions"] * 2 == features["nb_max_frames"]
    assert shapes["audio_tower.embed_positions.weight"][0] == encoder["max_source_positions"]
    assert shapes["multi_modal_projector.linear.weight"] == (
        config["text_config"]["hidden_size"],
        encoder["d_model"],
    )
    assert (
        shapes["language_model.lm_head.weight"][0]
        == config["text_config"]["vocab_size"]
        == config["vocab_size"]
    )
    tokens = json.loads((place / "tokenizer.json").read_text())["added_tokens"]
    assert ("<|AUDIO|>", config["audio_token_index"]) in [
        (token["content"], token["id"]) for token in tokens
    ]
    template = json.loads((place / "chat_template.json").read_text())["chat_template"]
    content = [{"type": "audio"}, {"type": "text", "text": "What is it?"}]
    text = Template(template).render(messages=[{"role": "user", "content": content}])
    assert text == "<|im_start|>user\n<|audio_bos|><|AUDIO|><|audio_eos|>What is it?<|im_end|>\n"


@pytest.mark.parametrize("kind", ["experts", "mamba", "speech", "audio"])
def test_a_script_has_the_same_tokens_in_every_vocabulary(kind: str, checkpoints: Path) -> None:
    place, config, _ = forged(kind, checkpoints)
    numbers = {
        token["content"]: token["id"]
        for token in json.loads((place / "tokenizer.json").read_text())["added_tokens"]
    }
    assert {name: numbers[name] for name in added_tokens()} == added_tokens()
    assert (
        len(set(numbers.values())) == len(numbers) and max(numbers.values()) < config["vocab_size"]
    )
