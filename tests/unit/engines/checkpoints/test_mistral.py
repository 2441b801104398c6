"""Mistral's own tokenizer: the file, and how the simulated model reads it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.checkpoints.tokenizers import tokens, vocabulary
from pytest_vllm_regress.target_site.vllm_regress_target.script_format import END, START


@pytest.fixture(scope="module")
def tekken(checkpoints: Path) -> dict[str, Any]:
    place = ensure_checkpoint("mistral", checkpoints)
    assert not (place / "tokenizer.json").exists()
    read: dict[str, Any] = json.loads((place / "tekken.json").read_text())
    size = json.loads((place / "config.json").read_text())["vocab_size"]
    assert size == read["config"]["default_vocab_size"]  # a model says no token that has no text
    return read


def test_the_vocabulary_of_the_other_models_follows_the_control_tokens(
    tekken: dict[str, Any],
) -> None:
    words = [base64.b64decode(token["token_bytes"]) for token in tekken["vocab"]]
    assert words[:256] == [bytes([byte]) for byte in range(256)] and len(set(words)) == len(words)
    assert words[256:258] == [b'":', b'": '] and len(words) == len(vocabulary()[0]) + 2
    assert [token["rank"] for token in tekken["vocab"]] == list(range(len(words)))
    texts = [token["token_str"] for token in tekken["vocab"]]
    assert texts[0xC3] is None and texts[ord("a")] == "a" and texts[-2:] == [START, END]
    config, special = tekken["config"], tekken["special_tokens"]
    assert config["default_num_special_tokens"] + len(words) == config["default_vocab_size"]
    assert config["default_num_special_tokens"] > len(
        special
    )  # mistral_common 1.5 wants one more at least
    assert [token["token_str"] for token in special] == tokens("control") and tokens(
        "control"
    ).index("[TOOL_CALLS]") == 9


@pytest.mark.parametrize(
    "before", ["", "Hello", "Hello?", "a ", " ", "\n", "<", "<|", '":', "1", "\u00fc\U0001f600"]
)
def test_the_pattern_never_splits_the_tokens_around_a_script(
    tekken: dict[str, Any], before: str
) -> None:
    pattern = tekken["config"]["pattern"]
    for in_tekken, in_python in (
        (r"[^\r\n\p{L}\p{N}]", r"[^\r\n\w]"),
        (r"[^\s\p{L}\p{N}]", r"[^\s\w]"),
        (r"\p{L}", r"[^\W\d_]"),
        (r"\p{N}", r"\d"),
    ):
        pattern = pattern.replace(in_tekken, in_python)
    text = f"{before}{START}a+?b~{END}. x"
    pieces = [match.group() for match in re.finditer(pattern, text)]
    assert "".join(pieces) == text
    assert pieces.count(START) == pieces.count(END) == 1
