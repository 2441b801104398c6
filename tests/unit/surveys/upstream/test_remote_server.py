"""The arguments of ``RemoteOpenAIServer``, as upstream checks and completes them, and sampling
parameters of ``VllmRunner``."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_vllm_regress import RemoteOpenAIServer, VllmRunner
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.surveys.upstream.drop_ins import _arguments, _sampling


@pytest.mark.parametrize("flags", [["--port", "8000"], ["-p", "8000"], ["--port=8000"]])
def test_a_port_that_is_given_needs_auto_port_false_and_is_then_replaced(flags: list[str]) -> None:
    with pytest.raises(ValueError, match="manually specified the port"):
        RemoteOpenAIServer("text", flags)
    assert _arguments([*flags, "--dtype", "float16"], None, False, None) == ("--dtype", "float16")


def test_the_seed_is_added_unless_it_is_given_or_none() -> None:
    assert _arguments([], 0, True, None) == ("--seed", "0")
    assert _arguments(["--seed", "5"], None, True, None) == ("--seed", "5")
    with pytest.raises(ValueError, match="manually specified the seed"):
        RemoteOpenAIServer("text", ["--seed", "5"])


def test_the_arguments_of_the_caller_do_not_change() -> None:
    words = ["--host", "0.0.0.0", "--enforce-eager"]
    assert _arguments(words, 0, True, {"a": 1}) == (
        "--enforce-eager",
        "--seed",
        "0",
        "--hf-overrides",
        '{"a": 1}',
    )
    assert words == ["--host", "0.0.0.0", "--enforce-eager"]


def test_paths_below_the_working_directory_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "a.jinja").write_text("")
    words = ["--chat-template", "examples/a.jinja", "--tokenizer", "owner/name"]
    assert _arguments(words, None, True, None) == (
        *("--chat-template", str(tmp_path / "examples" / "a.jinja"), "--tokenizer", "owner/name"),
    )


@pytest.mark.parametrize(
    "words", [["--uds", "/tmp/x"], ["--ssl-keyfile", "x"], ["--ssl-keyfile=x"]]
)
def test_unix_sockets_and_tls_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="not supported"):
        RemoteOpenAIServer("text", words)


def test_sampling_parameters_are_a_mapping_or_vllm_s_own_object() -> None:
    class Params:
        __struct_fields__ = ("n", "temperature", "_private", "output_kind")

        def __init__(self, temperature: float = 1.0) -> None:
            self.n, self.temperature, self._private, self.output_kind = 1, temperature, 3, object

    assert _sampling({"n": 2}) == {"n": 2}
    assert _sampling(Params(0.5)) == {"temperature": 0.5}
    with pytest.raises(UsageError, match="SamplingParams, not int"):
        _sampling(3)
    with pytest.raises(UsageError, match="task='paint'"):
        VllmRunner("text", "paint")
