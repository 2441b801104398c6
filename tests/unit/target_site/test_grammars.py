"""Whether a grammar takes a text, as probes of cases ask it; the backend here takes the letters of its schema, in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, grammars


class Letters(grammars.Backend):
    """A text that is not empty and has only letters of ``schema["letters"]``."""

    def compile(self, schema: dict[str, Any]) -> grammars.Grammar:
        vocabulary = self.vocabulary

        class Walk(grammars.Walk):
            taken = 0

            def allowed(self) -> list[int]:
                letters = vocabulary.spell(schema["letters"], whole=False)
                return [*letters, *([vocabulary.eos] if self.taken else [])]

            def advance(self, token: int) -> None:
                self.taken += 1

        class Grammar(grammars.Grammar):
            def walk(self) -> grammars.Walk:
                return Walk()

        return Grammar()


@pytest.mark.parametrize(("text", "expected"), [("aba", True), ("abc", False), ("", False)])
def test_a_text_is_taken_whole_or_not(
    text: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "installed", lambda name: True)
    monkeypatch.setattr(grammars, "load", lambda name, vocabulary: Letters(vocabulary))
    tokenizer = str(ensure_checkpoint("text", tmp_path))
    assert grammars.takes("xgrammar", tokenizer, {"letters": "ab"}, text) is expected


def test_what_is_not_installed_is_not_applicable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "installed", lambda name: False)
    with pytest.raises(Unsupported, match="xgrammar is not installed") as caught:
        grammars.takes("xgrammar", "nowhere", {}, "")
    assert caught.value.claim == {"needs": "xgrammar"}
