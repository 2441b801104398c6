"""Tokenizers of checkpoints as data, and the numbers of a script's tokens in them."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.checkpoints.tokenizers import added_tokens
from pytest_vllm_regress.target_site.vllm_regress_target import vocabularies
from pytest_vllm_regress.target_site.vllm_regress_target.script_format import ScriptedAnswer, Step
from pytest_vllm_regress.target_site.vllm_regress_target.vocabularies import Numbers, of_checkpoint

THINK: Step = (("<think>", 1.0),)
CALL: Step = (("[TOOL_CALLS]", 1.0),)


def numbers(kind: str, root: Path) -> Numbers:
    return Numbers(of_checkpoint(str(ensure_checkpoint(kind, root)), "auto"))


def said(numbers: Numbers, *steps: Step) -> list[int | str]:
    return [step[0][0] for step in numbers.of(ScriptedAnswer(steps)).steps]


def test_a_script_gets_the_numbers_of_each_tokenizer(checkpoints: Path) -> None:
    spelled = list(b"<think>")
    text, pieces, own = (
        numbers(kind, checkpoints) for kind in ("text", "sentencepiece", "mistral")
    )
    assert said(text, ((97, 1.0),), THINK) == [97, added_tokens()["<think>"]]
    assert said(pieces, ((97, 1.0),), THINK) == [97, *spelled]  # it has no such token
    assert said(own, ((97, 1.0),), THINK, CALL) == [own.first + byte for byte in (97, *spelled)] + [
        9
    ]
    assert own.first == 22


def test_probabilities_need_existing_tokens(checkpoints: Path) -> None:
    either: Step = ((97, 0.5), ("<think>", 0.5))
    (step,) = numbers("text", checkpoints).of(ScriptedAnswer((either,), ends=False)).steps
    assert step == ((97, 0.5), (added_tokens()["<think>"], 0.5))
    with pytest.raises(ValueError, match="no token '<think>'"):
        numbers("mistral", checkpoints).of(ScriptedAnswer((either,)))


def test_the_tokenizer_mode_selects_the_file(tmp_path: Path) -> None:
    both = ensure_checkpoint("mistral", tmp_path)
    plain = {"model": {"vocab": {"a": 0}}, "added_tokens": []}
    (both / "tokenizer.json").write_text(json.dumps(plain))
    assert of_checkpoint(str(both), "auto") == plain
    assert (
        len(of_checkpoint(str(both), "mistral")["added_tokens"]) == 24
    )  # 22 control tokens, and the two that hold scripts
    (both / "tekken.json").unlink()
    assert of_checkpoint(str(both), "mistral") == plain


def test_missing_and_large_files_are_empty(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_checkpoint(str(tmp_path), "auto") == {}
    place = ensure_checkpoint("mistral", checkpoints)
    monkeypatch.setattr(vocabularies, "MAX_SIZE", 100)
    assert of_checkpoint(str(place), "mistral") == {}
    assert Numbers({}).first == 0


def test_a_folder_is_itself_and_a_name_is_looked_up_in_the_hub_s_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def try_to_load_from_cache(name: str, file: str) -> str | None:
        asked.append((name, file))
        return "/hub/snapshot/tekken.json" if file == "tekken.json" else None

    hub = types.ModuleType("huggingface_hub")
    vars(hub)["try_to_load_from_cache"] = try_to_load_from_cache
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert vocabularies.folder_of(str(tmp_path)) == str(tmp_path) and not asked
    assert vocabularies.folder_of("owner/model") == "/hub/snapshot"
    assert asked == [("owner/model", "tokenizer.json"), ("owner/model", "tekken.json")]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert vocabularies.folder_of("owner/model") == "owner/model"
