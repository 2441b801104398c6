"""The command line of ``vllm serve``: arguments for every kind of value, and server options of the
installed parser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from unittest import mock

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported, WrongRequest
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import commandline, installed
from pytest_vllm_regress.target_site.vllm_regress_target.dialect.plan import Plan


def parser(*flags: str) -> argparse.ArgumentParser:
    known_options = argparse.ArgumentParser()
    for flag in flags:
        known_options.add_argument(flag)
    return known_options


def test_every_kind_of_value_has_its_arguments() -> None:
    options = {
        "model": "given elsewhere",
        "max_model_len": 512,
        "enforce_eager": True,
        "prefix_caching": False,
        "legacy": False,
        "dtype": None,
        "lora_modules": ["a=/a", {"name": "b", "path": "/b"}],
        "override": {"k": 1},
    }
    assert commandline._arguments(options, parser("--no-prefix-caching")) == [
        *("--max-model-len", "512", "--enforce-eager", "--no-prefix-caching"),
        *("--lora-modules", "a=/a", '{"name": "b", "path": "/b"}', "--override", '{"k": 1}'),
    ]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--tool-call-parser", "hermes"], "hermes"),
        (["--tool_call_parser=mistral", "--port", "1"], "mistral"),
        (["--tool-call-parser"], ""),
        (["--port", "1"], ""),
    ],
)
def test_the_value_of_an_option_is_found_in_each_form(words: list[str], value: str) -> None:
    assert commandline.value_of(words, "--tool-call-parser") == value


def test_server_options_must_be_known_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", lambda: "9.9")
    known = parser("--tool-call-parser", "--reasoning-parser")
    options = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    assert commandline._server_options(options, known) == options
    with pytest.raises(
        WrongRequest,
        match=r"no vLLM .* server option 'tool_parser', nor has 9.9; close to it: .*tool_call_parser",
    ):
        commandline._server_options({"tool_parser": "hermes"}, known)
    with pytest.raises(Unsupported) as lacking:
        commandline._server_options({"response_role": "x"}, known)
    assert lacking.value.claim


def test_a_reasoning_parser_is_enabled_if_the_version_requires_that() -> None:
    old = parser("--enable-reasoning", "--reasoning-parser")
    assert commandline._server_options({"reasoning_parser": "x"}, old) == {
        "reasoning_parser": "x",
        "enable_reasoning": True,
    }
    assert (
        commandline._server_options({"reasoning_parser": "x", "enable_reasoning": False}, old)[
            "enable_reasoning"
        ]
        is False
    )


def test_limits_are_pairs_if_the_parser_reads_pairs() -> None:
    """Regression: up to 0.8.4 the server ended with "invalid nullable_kvs value"."""

    def nullable_kvs(text: str) -> dict[str, int]:
        return {
            name: int(count) for name, _, count in (pair.partition("=") for pair in text.split(","))
        }

    old = argparse.ArgumentParser()
    old.add_argument("--limit-mm-per-prompt", type=nullable_kvs)
    limits = {"image": 2, "audio": 1}
    words = commandline._arguments({"limit_mm_per_prompt": limits}, old)
    assert words == ["--limit-mm-per-prompt", "image=2,audio=1"]
    assert old.parse_args(words).limit_mm_per_prompt == limits


@pytest.mark.parametrize(
    "home", ["vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args", None]
)
def test_the_parser_is_imported_from_the_command_s_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    module = home or "vllm.entrypoints.openai.cli_args"  # vLLM 0.5 had no command
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True)
    file.write_text(
        "from argparse import ArgumentParser as FlexibleArgumentParser\n"
        "def make_arg_parser(parser):\n    parser.add_argument('--here')\n    return parser\n"
    )
    if home:
        command = tmp_path / "vllm" / "entrypoints" / "cli" / "serve.py"
        command.parent.mkdir()
        command.write_text(
            f"import a_server_not_to_be_loaded\nfrom {home} import (make_arg_parser,\n    another)\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    commandline.serve_parser.cache_clear()
    with mock.patch.dict(sys.modules):
        assert "here" in [action.dest for action in commandline.serve_parser()._actions]


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["--seed", "0"], ["vllm", "serve", "/m", "--seed", "0"]),
        (["launch", "render", "--seed", "0"], ["vllm", "launch", "render", "/m", "--seed", "0"]),
    ],
)
def test_given_words_follow_the_command_that_they_name(
    words: list[str], argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commandline, "_vllm_command", lambda: sys.exit)
    assert commandline.serve_command(Plan({"model": "/m"}, {}, []), words)[0] == argv


@pytest.mark.parametrize(
    ("has_command", "subcommands", "words"),
    [
        (True, ["run_batch"], ["vllm", "run-batch"]),
        (True, [], ["vllm.entrypoints.openai.run_batch"]),
        (True, None, ["vllm.entrypoints.openai.run_batch"]),
        (False, ["run_batch"], ["vllm.entrypoints.openai.run_batch"]),
    ],
)
def test_a_batch_is_run_by_the_command_or_else_by_the_module(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_command: bool,
    subcommands: list[str] | None,
    words: list[str],
) -> None:
    folder = tmp_path / "vllm" / "entrypoints" / "cli"
    (folder if subcommands is not None else folder.parent).mkdir(
        parents=True
    )  # 0.7.0 has no package `cli`
    for name in ("__init__", *subcommands) if subcommands is not None else ():
        folder.joinpath(f"{name}.py").touch()
    monkeypatch.setattr(commandline, "_vllm_command", lambda: sys.exit if has_command else None)
    monkeypatch.syspath_prepend(tmp_path)
    with mock.patch.dict(sys.modules):
        assert commandline.batch_command()[0] == words


def test_a_given_command_line_gets_the_generation_that_the_spec_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "pytest_vllm_regress.target_site.vllm_regress_target.dialect.plan.known_environment", dict
    )
    spec = {"model": "text", "model_path": "/m", "env": {}, "generation": "V0", "device": "sim"}
    assert "VLLM_USE_V1" not in commandline.given(spec).env
    monkeypatch.setattr(
        "pytest_vllm_regress.target_site.vllm_regress_target.dialect.plan.known_environment",
        lambda: {"VLLM_USE_V1": True},
    )
    assert commandline.given(spec).env["VLLM_USE_V1"] == "0"
    assert "VLLM_USE_V1" not in commandline.given({**spec, "generation": "auto"}).env
