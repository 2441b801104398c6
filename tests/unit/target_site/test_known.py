"""What which vLLM has: a typing error is told apart from what only this version lacks."""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, WrongRequest
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import known


def test_a_typing_error_names_close_ones() -> None:
    error = known.lacks("enable_prefx_caching", "0.8.5")
    assert isinstance(error, WrongRequest)
    assert "no vLLM from 0.5.4 to 0." in str(error) and "close to it: enable_prefix_caching" in str(error)


@pytest.mark.parametrize(
    ("argument", "version", "claim"),
    [
        ("tokenizer_pool_size", "0.33.0", {"until": "0.9.2"}),
        ("tokenizer_pool_size", "0.9.2rc1+cpu", {"refused_by": "vLLM 0.9.2rc1+cpu"}),
        ("api_server_count", "0.8.5", {"since": "0.9.2"}),
    ],
)
def test_what_this_version_lacks_is_a_claim(argument: str, version: str, claim: dict[str, str]) -> None:
    error = known.lacks(argument, version)
    assert isinstance(error, Unsupported)
    assert error.claim == claim


def test_features() -> None:
    assert known.without("the V1 engine", "0.5.5").claim == {"since": "0.7.3"}
    assert known.without("the V0 engine", "0.33.0").claim == {"until": "0.10.2"}


def test_every_argument_has_two_versions_that_were_looked_at() -> None:
    document = json.loads(known.FILE.read_text())
    for part in ("arguments", "features"):
        for name, (first, last) in document[part].items():
            assert document["versions"].index(first) <= document["versions"].index(last), name
