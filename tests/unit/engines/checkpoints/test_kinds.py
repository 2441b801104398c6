"""Kinds of checkpoints other than text and vision: heads, encoders, and other tokenizers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from pytest_vllm_regress.engines.checkpoints.forge import (
    KINDS,
    arguments_of,
    ensure_checkpoint,
    tokenizer_of,
    unmet_needs,
)
from pytest_vllm_regress.engines.checkpoints.tokenizers import model_file, pieces
from pytest_vllm_regress.errors import UsageError


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_id_is_within_the_vocabulary(kind: str, checkpoints: Path) -> None:
    place = ensure_checkpoint(kind, checkpoints)
    config = json.loads((place / "config.json").read_text())
    assert len(config["architectures"]) == 1
    assert max(tokenizer_of(kind).ids.values()) < config["vocab_size"]
    weights = load_file(place / "model.safetensors")
    widest = {
        tensor.shape[1]
        for name, tensor in weights.items()
        if tensor.shape[:1] == (config["vocab_size"],)
    }
    decoder = config.get("text_config", config)
    assert widest == {decoder.get("hidden_size") or decoder["d_model"]}
    norms = [
        tensor for name, tensor in weights.items() if tensor.ndim == 1 and name.endswith(".weight")
    ]
    assert norms and all((tensor == 1).all() for tensor in norms)


@pytest.mark.parametrize(
    ("kind", "head", "labels"), [("classifier", "score", 3), ("reranker", "classifier", 1)]
)
def test_a_head_has_a_row_for_each_label(
    kind: str, head: str, labels: int, checkpoints: Path
) -> None:
    place = ensure_checkpoint(kind, checkpoints)
    config = json.loads((place / "config.json").read_text())
    assert len(config["id2label"]) == len(config["label2id"]) == labels
    assert load_file(place / "model.safetensors")[f"{head}.weight"].shape == (
        labels,
        config["hidden_size"],
    )


def test_a_draft_is_the_first_layer_of_the_text_model(checkpoints: Path) -> None:
    text, draft = (ensure_checkpoint(kind, checkpoints) for kind in ("text", "draft"))
    text_weights, draft_weights = (
        load_file(place / "model.safetensors") for place in (text, draft)
    )
    assert {name for name in text_weights if name not in draft_weights} == {
        name for name in text_weights if ".layers.1." in name
    }
    assert draft_weights and all(
        (text_weights[name] == weights).all() for name, weights in draft_weights.items()
    )
    assert json.loads((draft / "config.json").read_text())["num_hidden_layers"] == 1
    assert ensure_checkpoint("draft", checkpoints) == draft


def test_an_encoder_puts_its_tokens_around_texts_and_pairs(checkpoints: Path) -> None:
    place = ensure_checkpoint("encoder", checkpoints)
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    words = (place / "vocab.txt").read_text().split()
    assert tokenizer["model"]["vocab"] == {word: number for number, word in enumerate(words)}
    listed = tokenizer["post_processor"]["pair"]
    kinds = [next(iter(part.values()))["type_id"] for part in listed]
    assert [next(iter(part.values()))["id"] for part in listed] == [
        "[CLS]",
        "A",
        "[SEP]",
        "B",
        "[SEP]",
    ]
    assert kinds == [0, 0, 0, 1, 1]
    assert not (place / "generation_config.json").exists()


def test_the_token_of_a_byte_has_the_byte_s_number() -> None:
    """Scripts therefore mean the same in every forged vocabulary.

    Here each of their characters uses byte fallback.
    """
    assert [text for text, _, _ in pieces()[:256]] == [f"<0x{byte:02X}>" for byte in range(256)]


def fields(content: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Return the fields of a protobuf message by number."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = content[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at

    at = 0
    while at < len(content):
        key, at = varint(at)
        if key & 7 == 2:
            size, at = varint(at)
            yield key >> 3, content[at : at + size]
            at += size
        elif key & 7 == 5:
            yield key >> 3, struct.unpack("<f", content[at : at + 4])[0]
            at += 4
        else:
            value, at = varint(at)
            yield key >> 3, value


def test_the_model_file_and_the_fast_tokenizer_agree(checkpoints: Path) -> None:
    place = ensure_checkpoint("sentencepiece", checkpoints)
    assert (place / "tokenizer.model").read_bytes() == model_file()
    listed = [
        dict(fields(message))
        for number, message in fields(model_file())
        if number == 1 and isinstance(message, bytes)
    ]
    texts = [piece[1].decode() for piece in listed if isinstance(piece[1], bytes)]
    model = json.loads((place / "tokenizer.json").read_text())["model"]
    assert model["byte_fallback"] and model["vocab"] == {
        text: number for number, text in enumerate(texts)
    }
    scores = dict(zip(texts, (piece[2] for piece in listed), strict=True))
    merged = ["".join(pair.split(" ")) for pair in model["merges"]]
    assert [-np.float32(rank) for rank in range(len(merged))] == [scores[text] for text in merged]
    (trainer,) = [
        dict(fields(message))
        for number, message in fields(model_file())
        if number == 2 and isinstance(message, bytes)
    ]
    assert [texts[int(trainer[number])] for number in (40, 41, 42)] == ["<unk>", "<s>", "</s>"]
    assert trainer[3] == 2 and trainer[35] == 1  # BPE, byte fallback


def test_a_tokenizer_without_a_fast_version_has_only_the_model_file(checkpoints: Path) -> None:
    place = ensure_checkpoint("slow-tokenizer", checkpoints)
    assert (place / "spiece.model").read_bytes() == model_file() and not (
        place / "tokenizer.json"
    ).exists()


def test_packages_that_kinds_need() -> None:
    old, new = {"transformers": "4.48.2", "torchvision": "0.20.1"}, {"transformers": "4.49.0"}
    assert unmet_needs("vision", old) == ("transformers>=4.49",)
    assert unmet_needs("vision", new) == ("torchvision",)
    assert (
        unmet_needs("vision", old | new)
        == unmet_needs("text", {})
        == unmet_needs("/a/path", {})
        == ()
    )
    assert arguments_of("mistral") == {"tokenizer_mode": "mistral"} and not arguments_of("text")
    with pytest.raises(UsageError, match="there are text, vision, classifier"):
        tokenizer_of("poem")
