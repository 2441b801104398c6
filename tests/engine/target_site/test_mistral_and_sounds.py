"""Mistral's own tokenizer, and sounds over HTTP, on real vLLM on the simulated device."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from pytest_vllm_regress.environments.cache import EnvironmentCache
from pytest_vllm_regress.environments.names import resolve
from tests.helpers import ROOT
from tests.helpers.built import need_built

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("user_caches")]
NEWEST = "vllm-0.33.0"

MISTRAL = """
    import pytest
    from pytest_vllm_regress import Script

    @pytest.mark.vllm_engine(model="mistral", generation=["V0", "V1"])
    def test_said(vllm_engine):
        script = Script.text("a<think>[TOOL_CALLS]").then(Script.either({"b": 0.5, "c": 0.5})).then(Script.raw(b"\\xf0"))
        (result,) = vllm_engine.generate(script.prompt("Hello"), {"max_tokens": 40})
        first = 22  # of the bytes; control tokens stand before them
        said = [first + byte for byte in b"a<think>"] + [9]
        tokens = list(result["outputs"][0]["token_ids"])
        assert tokens[:9] == said and tokens[9] in (first + 98, first + 99) and tokens[10:] == [first + 0xF0, 2]

    @pytest.mark.vllm_engine(model="mistral", generation="V1", extra={"tokenizer_mode": "auto"})
    def test_what_a_spec_says_counts(vllm_engine):
        raise AssertionError("never reached")
"""

SOUNDS = """
    import pytest
    from pytest_vllm_regress import RemoteError, Script, wav

    pytestmark = pytest.mark.vllm_engine(model="speech")

    def test_heard(vllm_server):
        said = Script.text(" A tone.").prompt()
        for stream in (False, True):
            assert vllm_server.transcribe(wav(0.5), language="en", prompt=said, stream=stream) == " A tone."
        assert vllm_server.translate(wav(0.5), prompt=said) == " A tone."
        assert vllm_server.post("/v1/completions", {"model": vllm_server.model, "prompt": "x"}).status_code == 404

    def test_broken(vllm_server):
        with pytest.raises(RemoteError, match="HTTP 400"):
            vllm_server.transcribe(wav(0.5, keep=30), language="en")
        vllm_server.check()
"""


def test_mistral(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MISTRAL)
    result = pytester.runpytest_subprocess("--vllm-env=vllm-0.8.5", "--vllm-leftovers=fail", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)  # the tokenizer that "auto" looks for is not there


def test_sounds(pytester: pytest.Pytester) -> None:
    need_built(NEWEST)
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
            result.stdout.fnmatch_lines("*reads no sound files without soundfile (needs vllm?audio?)*")


def with_soundfile(folder: Path) -> Path:
    """A Python that has what the environment has, and a stand-in for soundfile."""
    found = EnvironmentCache().built(resolve(NEWEST))
    assert found is not None
    (packages,) = found.parent.parent.glob("lib/python3.*/site-packages")
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("lib/python3.*/site-packages")
    (own / "others.pth").write_text(f"{packages}\n{ROOT / 'tests/helpers/standins/sound'}\n")
    return folder / "bin" / "python"
