"""Names of the hub as aliases of forged checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.checkpoints.hub_cache import (
    ADAPTER,
    PROMPT_ADAPTER,
    ensure_alias,
    kind_of,
    snapshot_of,
)
from pytest_vllm_regress.errors import UsageError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("facebook/opt-125m", "text"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "text"),
        ("typeof/zephyr-7b-beta-lora", ADAPTER),
        ("swapnilbp/llama_tweet_ptune", PROMPT_ADAPTER),
        ("openai/whisper-large-v3", "speech"),
        ("Qwen/Qwen2-Audio-7B-Instruct", "audio"),
        ("fixie-ai/ultravox-v0_5-llama-3_2-1b", "audio"),
        ("BAAI/bge-reranker-v2-m3", "reranker"),
        ("intfloat/multilingual-e5-small", "encoder"),
        ("intfloat/e5-mistral-7b-instruct", "text"),
        ("Qwen/Qwen2-VL-2B-Instruct", "vision"),
        ("jason9693/Qwen2.5-1.5B-apeach", "classifier"),
        ("mistralai/Mamba-Codestral-7B-v0.1", "mamba"),
        ("distilbert/distilgpt2", "text"),  # the owner of models of another kind
        ("robertgshaw2/zephyr-7b-beta-channelwise-gptq", "text"),
        ("distilbert/distilbert-base-uncased", "encoder"),
        ("sentence-transformers/stsb-roberta-base-v2", "encoder"),
        ("cross-encoder/ms-marco-MiniLM-L-6-v2", "reranker"),
        ("facebook/bart-large-cnn", None),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", None),
    ],
)
def test_the_name_decides_the_kind_of_checkpoint(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind


def test_an_alias_has_the_hub_s_layout_and_is_written_once(tmp_path: Path) -> None:
    snapshot = ensure_alias("owner/model", tmp_path / "hub", tmp_path / "checkpoints")
    assert snapshot is not None
    repository = tmp_path / "hub" / "models--owner--model"
    commit = (repository / "refs" / "main").read_text()
    assert snapshot == repository / "snapshots" / commit and len(commit) == 40
    assert json.loads((snapshot / "config.json").read_text())["max_position_embeddings"] == 32768
    written = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    assert ensure_alias("owner/model", tmp_path / "hub", tmp_path / "checkpoints") == snapshot
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == written


def test_a_missing_file_is_restored(tmp_path: Path) -> None:
    snapshot = ensure_alias("owner/model", tmp_path / "hub", tmp_path / "checkpoints")
    assert snapshot is not None
    (snapshot / "config.json").unlink()
    ensure_alias("owner/model", tmp_path / "hub", tmp_path / "checkpoints")
    assert (snapshot / "config.json").is_file()


def test_an_adapter_fits_the_text_model(tmp_path: Path) -> None:
    snapshot = ensure_alias("owner/some-lora", tmp_path / "hub", tmp_path / "checkpoints")
    assert snapshot is not None
    assert {path.name for path in snapshot.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert ensure_alias("owner/eagle", tmp_path / "hub", tmp_path / "checkpoints") is None


def test_a_prompt_adapter_has_virtual_tokens(tmp_path: Path) -> None:
    snapshot = ensure_alias("owner/ptune", tmp_path / "hub", tmp_path / "checkpoints")
    assert snapshot is not None
    assert json.loads((snapshot / "adapter_config.json").read_text())["num_virtual_tokens"] == 8


def test_an_old_name_without_an_owner_has_a_stand_in(tmp_path: Path) -> None:
    snapshot = ensure_alias("gpt2", tmp_path / "hub", tmp_path / "checkpoints")
    assert snapshot is not None and snapshot.parents[1].name == "models--gpt2"
    assert snapshot_of("gpt2", tmp_path / "hub") == snapshot


@pytest.mark.parametrize(
    "name", ["../x", "a/../b", "a/b/c", "a--b/c", "model", "", "a/b\n", "/etc"]
)
def test_what_is_no_name_of_the_hub_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not a name of the hub"):
        ensure_alias(name, tmp_path / "hub", tmp_path / "checkpoints")
    assert not (tmp_path / "hub").exists()
