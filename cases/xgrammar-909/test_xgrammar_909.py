"""mlc-ai/xgrammar#909: a JSON string must not contain bytes that are not UTF-8."""

from __future__ import annotations

import pytest

from pytest_vllm_regress import AtWork, Probe

NO_CHARACTER = {"overlong": b"\xc0\xaf", "above-u10ffff": b"\xf4\x90\x80\x80"}


def check(data: bytes, probe: Probe, at_work: AtWork, model: str) -> None:
    characters = probe("accepts", tokenizer=model, content="aé€😀".encode().hex())
    alone = probe("accepts", tokenizer=model, content="80")
    at_work("characters of one to four bytes are accepted, and a part of one is not", characters and not alone)
    accepted = probe("accepts", tokenizer=model, content=data.hex())
    assert not accepted, f"xgrammar accepts {data!r}, which is not UTF-8"


@pytest.mark.vllm_case("xgrammar-909")
def test_surrogate(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str) -> None:
    check(b"\xed\xa0\x80", vllm_probe, vllm_at_work, vllm_model_path)


@pytest.mark.vllm_case("xgrammar-909", variant="no-character")
@pytest.mark.parametrize("data", NO_CHARACTER.values(), ids=NO_CHARACTER)
def test_no_character(vllm_probe: Probe, vllm_at_work: AtWork, vllm_model_path: str, data: bytes) -> None:
    check(data, vllm_probe, vllm_at_work, vllm_model_path)
