"""Mistral's own tokenizer, transcription over HTTP, and audio in chats, with real vLLM on the
simulated device."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve
from tests.helpers import ROOT
from tests.helpers.environments import require_environment

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]
NEWEST = "vllm-0.33.0"

MISTRAL = """
    import pytest
    from pytest_vllm_regress import Script

    @pytest.mark.vllm_engine(model="mistral", generation=["V0", "V1"])
    def test_script(vllm_engine):
        script = Script.text("a<think>[TOOL_CALLS]").then(Script.either({"b": 0.5, "c": 0.5})).then(Script.raw(b"\\xf0"))
        (result,) = vllm_engine.generate(script.prompt("Hello"), {"max_tokens": 40})
        first = 22  # token of the first byte; control tokens come before
        expected = [first + byte for byte in b"a<think>"] + [9]
        tokens = list(result["outputs"][0]["token_ids"])
        assert tokens[:9] == expected and tokens[9] in (first + 98, first + 99) and tokens[10:] == [first + 0xF0, 2]

    @pytest.mark.vllm_engine(model="mistral", generation="V1", extra={"tokenizer_mode": "auto"})
    def test_the_spec_decides(vllm_engine):
        raise AssertionError("never reached")
"""

SOUNDS = """
    import pytest
    from pytest_vllm_regress import RemoteError, Script, wav

    pytestmark = pytest.mark.vllm_engine(model="speech")

    def test_transcription_and_translation(vllm_server):
        script = Script.text(" A tone.").prompt()
        for stream in (False, True):
            assert vllm_server.transcribe(wav(0.5), language="en", prompt=script, stream=stream) == " A tone."
        assert vllm_server.translate(wav(0.5), prompt=script) == " A tone."
        assert vllm_server.post("/v1/completions", {"model": vllm_server.model, "prompt": "x"}).status_code == 404

    def test_broken_file(vllm_server):
        with pytest.raises(RemoteError, match="HTTP 400"):
            vllm_server.transcribe(wav(0.5, keep=30), language="en")
        vllm_server.check()
"""

CHAT = """
    import base64
    import pytest
    from pytest_vllm_regress import Script, wav

    @pytest.mark.vllm_engine(model="audio", max_model_len=1024)
    def test_sound_in_a_chat(vllm_server):
        def tokens(seconds):
            sound = {"data": base64.b64encode(wav(seconds)).decode(), "format": "wav"}
            content = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": Script.text("A tone.").prompt()}]
            answer = vllm_server.chat([{"role": "user", "content": content}], max_tokens=20)
            assert answer["choices"][0]["message"]["content"] == "A tone."
            return answer["usage"]["prompt_tokens"]

        assert tokens(2.0) - tokens(1.0) == 25
"""


def test_mistrals_tokenizer_follows_scripts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MISTRAL)
    result = pytester.runpytest_subprocess(
        "--vllm-env=vllm-0.8.5", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=2, errors=1)  # the tokenizer that "auto" looks for does not exist


def test_audio_needs_soundfile(pytester: pytest.Pytester) -> None:
    require_environment(NEWEST)
    pytester.makepyfile(SOUNDS)
    for python, outcomes in (
        (NEWEST, {"skipped": 2}),
        (str(with_soundfile(pytester.path / "python")), {"passed": 2}),
    ):
        result = pytester.runpytest_subprocess(
            "-rs", f"--vllm-env={python}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
        )
        result.assert_outcomes(**outcomes)
        if "skipped" in outcomes:
            result.stdout.fnmatch_lines(
                "*reads no sound files without soundfile (needs vllm?audio?)*"
            )


def test_a_sound_is_part_of_a_chat(pytester: pytest.Pytester) -> None:
    require_environment(NEWEST)
    pytester.makepyfile(CHAT)
    python = with_soundfile(pytester.path / "python")
    result = pytester.runpytest_subprocess(
        f"--vllm-env={python}", "--vllm-leftovers=fail", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1)


def with_soundfile(folder: Path) -> Path:
    """Create a Python with the packages of the environment and a fake soundfile."""
    python = EnvironmentCache().built(resolve(NEWEST))
    assert python is not None
    (packages,) = python.parent.parent.glob("lib/python3.*/site-packages")
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("lib/python3.*/site-packages")
    (own / "others.pth").write_text(f"{packages}\n{ROOT / 'tests/helpers/fakes/sound'}\n")
    return folder / "bin" / "python"
