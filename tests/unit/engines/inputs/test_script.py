"""Scripts, and the workers' notes about scripts that they could not follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
from pytest_vllm_regress.engines.checkpoints.tokenizers import added_tokens
from pytest_vllm_regress.engines.inputs.script import Script, ScriptWatch
from pytest_vllm_regress.errors import ScriptError, Unsupported, UsageError
from pytest_vllm_regress.target_site.vllm_regress_target.script_format import (
    END,
    START,
    ScriptedAnswer,
    Token,
    decode,
)

IDS = added_tokens()


def said(prompt: str) -> tuple[ScriptedAnswer, ...]:
    text, _, rest = prompt.partition(START)
    assert text == "Hello" and rest.endswith(END)
    return decode(rest.removesuffix(END))


def sure(*tokens: Token) -> tuple[tuple[tuple[Token, float], ...], ...]:
    return tuple(((token, 1.0),) for token in tokens)


def test_a_text_becomes_bytes_and_markers() -> None:
    script = Script.text("a\u00e9<think>b<|im_end|>")
    assert said(script.prompt("Hello")) == (
        ScriptedAnswer(sure(97, 0xC3, 0xA9, "<think>", 98, "<|im_end|>"), ends=True),
    )


def test_joined_scripts_end_as_the_last_does() -> None:
    script = (
        Script.raw(b"\xf0\x9f")
        .then(Script.either({"a": 0.75, 98: 0.25}))
        .then(Script.tokens([300], end=False))
    )
    (answer,) = said(script.prompt("Hello"))
    assert answer == ScriptedAnswer(
        (*sure(0xF0, 0x9F), ((97, 0.75), (98, 0.25)), *sure(300)), ends=False
    )
    assert said(script.then("x").prompt("Hello"))[0].ends


def test_each_choice_has_its_own_script() -> None:
    first, second = Script.text("one"), Script.text("|two~", end=False)
    assert said(first.prompt("Hello", second)) == (
        ScriptedAnswer(first.steps, True),
        ScriptedAnswer(second.steps, False),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Script.tokens([len(IDS) + 296]),
        lambda: Script.tokens([-1]),
        lambda: Script.text("\ud800"),
        lambda: Script.either({}),
        lambda: Script.either({"a": 0.5, "b": 0.6}),
        lambda: Script.either({"a": 1.5, "b": -0.5}),
        lambda: Script.either({"ab": 1.0}),
        lambda: Script(end=False).prompt(),
    ],
)
def test_impossible_scripts_are_usage_errors(make: object) -> None:
    assert callable(make)
    with pytest.raises(UsageError):
        make()


def test_engines_that_cannot_follow_scripts_reject_them(checkpoints: Path, tmp_path: Path) -> None:
    forged, other = ensure_checkpoint("text", checkpoints), tmp_path
    request = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": Script.text("x").prompt()}]}
        ]
    }
    for device, model, words in (
        ("cpu", forged, "device cpu"),
        ("sim", other, "forged checkpoint"),
    ):
        watch = ScriptWatch.of({"device": device, "model_path": str(model)}, tmp_path / "notes")
        watch.admit({"messages": [{"role": "user", "content": "no script"}], "n": 2})
        with pytest.raises(Unsupported, match=words):
            watch.admit(request)
    ScriptWatch.of({"device": "sim", "model_path": str(forged)}, tmp_path / "notes").admit(request)


def test_a_script_that_could_not_be_followed_is_raised_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    watch = ScriptWatch("", notes, "sim")
    assert list(watch.environment.values()) == [str(notes)]
    watch.check()
    note = {
        "request": "7",
        "position": 3,
        "wanted": "b",
        "got": "c",
        "said": "aaa",
        "why": "masked",
        "allowed": ["c", "\n", "..."],
    }
    with notes.open("a") as file:
        file.write(json.dumps(note) + "\n" + '{"request": "8", ')
    with pytest.raises(
        ScriptError,
        match=r"request 7 .* at token 3, after 'aaa', wanted 'b', got 'c': its grammar.* allows only 'c' '\\n' ... there",
    ):
        watch.check()
    watch.check()
    with notes.open("a") as file:
        file.write('"problem": "the prompt was cut"}\n')
    with pytest.raises(ScriptError, match="request 8 could not be followed: the prompt was cut"):
        watch.check()
    with notes.open("a") as file:
        file.write("[]\nno JSON\n")
    with pytest.raises(ScriptError, match=r"unreadable: '\[\]'\n.*unreadable: 'no JSON'"):
        watch.check()


@pytest.mark.parametrize("kind", ["text", "vision"])
def test_scripts_do_not_change_the_drawn_rows(kind: str, checkpoints: Path) -> None:
    """Rows depend on the vocabulary's size and the ids of special tokens, so neither may change."""
    place = ensure_checkpoint(kind, checkpoints)
    assert json.loads((place / "config.json").read_text())["vocab_size"] == 320
    assert (IDS["<|endoftext|>"], IDS["<|im_end|>"], IDS["<|video_pad|>"]) == (
        296,
        298,
        303,
    ) and max(IDS.values()) < 320
