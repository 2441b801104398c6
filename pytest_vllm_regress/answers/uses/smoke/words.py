"""The words with which a command line of a project is tried: its options without anything that runs
code or needs its model, files or GPUs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from ..model import Command
from ..strings import PARSER_OPTIONS

_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_SMALL = {
    "--max-model-len": "512",
    "--max-num-seqs": "8",
    "--max-num-batched-tokens": "2048",
    "--block-size": "16",
}
"""Sizes that the simulated device is given in place of the project's."""
_LEFT_OUT = re.compile(
    r"--(?:.*-parallel.*|data-parallel.*|nnodes|node-rank|master-.*|headless|api-server-count|host|port|uds|root-path"
    r"|ssl-.*|enable-ssl-refresh|api-key|trust-remote-code|device|quantization|load-format|kv-cache-dtype|dtype|task|runner|convert"
    r"|gpu-memory-utilization|swap-space|cpu-offload-gb|num-gpu-blocks-override|kv-cache-memory-bytes|hf-.*|config|help|version|grpc)"
)
"""Options that concern the machine, the model's weights, or where the server listens."""


@dataclasses.dataclass(frozen=True)
class ServerWords:
    """Words after ``vllm serve MODEL``, and the options that were left out."""

    words: tuple[str, ...]
    left_out: tuple[str, ...]


def server_words(command: Command, allowed: Callable[[str, str], bool]) -> ServerWords:
    """Return what is tried of a command.

    A value is passed on if it is a number, or if ``allowed`` knows it as one that vLLM lists for
    the option.
    """
    words: list[str] = []
    left_out: list[str] = []
    for name, value in command.options:
        if _LEFT_OUT.fullmatch(name) or "." in name:
            left_out.append(name)
        elif name in _SMALL:
            words += [name, _SMALL[name]]
        elif not value:
            words.append(name)
        elif _NUMBER.fullmatch(value) or allowed(name, value):
            words += [name, value]
        else:
            left_out.append(name)
    if "--enable-auto-tool-choice" in words and not words.count("--tool-call-parser"):
        words.remove("--enable-auto-tool-choice")
        left_out.append("--enable-auto-tool-choice")
    return ServerWords(tuple(words), tuple(dict.fromkeys(left_out)))


def is_listed(
    name: str,
    value: str,
    choices: Callable[[str], tuple[str, ...]],
    has_parser: Callable[[str, str], bool],
) -> bool:
    """Return whether vLLM lists a value for an option: a choice, or a registered parser."""
    if name in PARSER_OPTIONS:
        return has_parser(PARSER_OPTIONS[name], value)
    return value in choices(name)
