"""Arguments and features of each vLLM: a typo is told apart from an argument that only this version
lacks."""

from __future__ import annotations

import json

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, WrongRequest
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import known


def test_a_typing_error_names_similar_arguments() -> None:
    error = known.missing_argument("enable_prefx_caching", "0.8.5")
    assert isinstance(error, WrongRequest)
    assert "no vLLM from 0.5.4 to 0." in str(error) and "close to it: enable_prefix_caching" in str(
        error
    )


@pytest.mark.parametrize(
    ("argument", "version", "claim"),
    [
        ("tokenizer_pool_size", "0.33.0", {"until": "0.9.2"}),
        ("tokenizer_pool_size", "0.9.2rc1+cpu", {"refused_by": "vLLM 0.9.2rc1+cpu"}),
        ("api_server_count", "0.8.5", {"since": "0.9.1"}),
    ],
)
def test_a_missing_argument_says_since_or_until_when(
    argument: str, version: str, claim: dict[str, str]
) -> None:
    error = known.missing_argument(argument, version)
    assert isinstance(error, Unsupported)
    assert error.claim == claim


def test_missing_features_say_since_or_until_when() -> None:
    assert known.missing_feature("the V1 engine", "0.5.5").claim == {"since": "0.7.0"}
    assert known.missing_feature("the V0 engine", "0.33.0").claim == {"until": "0.10.2"}


def test_every_argument_has_a_first_and_a_last_known_version() -> None:
    document = json.loads(known.FILE.read_text())
    for part in ("arguments", "features"):
        for name, (first, last) in document[part].items():
            assert document["versions"].index(first) <= document["versions"].index(last), name
