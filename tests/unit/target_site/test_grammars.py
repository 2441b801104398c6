"""The function with which probes of cases test a grammar.

The backend here accepts the letters of its schema in any order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, grammars


class Letters(grammars.Backend):
    """Accepts nonempty texts of the letters in ``schema["letters"]``."""

    def compile(self, schema: dict[str, Any]) -> grammars.Grammar:
        vocabulary = self.vocabulary

        class Walk(grammars.Walk):
            length = 0

            def allowed(self) -> list[int]:
                letters = vocabulary.encode(schema["letters"], whole=False)
                return [*letters, *([vocabulary.eos] if self.length else [])]

            def advance(self, token: int) -> None:
                self.length += 1

        class Grammar(grammars.Grammar):
            def walk(self) -> grammars.Walk:
                return Walk()

        return Grammar()


@pytest.mark.parametrize(("text", "expected"), [("aba", True), ("abc", False), ("", False)])
def test_a_text_is_taken_whole_or_not(
    text: str, expected: bool, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "installed", lambda name: True)
    monkeypatch.setattr(grammars, "load", lambda name, vocabulary: Letters(vocabulary))
    tokenizer = str(ensure_checkpoint("text", checkpoints))
    assert grammars.accepts("xgrammar", tokenizer, {"letters": "ab"}, text) is expected


def test_a_backend_that_is_not_installed_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "installed", lambda name: False)
    with pytest.raises(Unsupported, match="xgrammar is not installed") as caught:
        grammars.accepts("xgrammar", "nowhere", {}, "")
    assert caught.value.claim == {"needs": "xgrammar"}
