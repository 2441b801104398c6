"""RunPod's worker images, which take vLLM's engine arguments from variables of their upper-case names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .findings import UNSET, literal
from .unread import field_of, names

_WORKER = re.compile(r"(?:^|[/-])worker(?:-v\d+)?-vllm(?:[-:@]|$)")
_RENAMED = {"MODEL_NAME": "model", "MODEL_REVISION": "revision", "TOKENIZER_NAME": "tokenizer"}
_OF_FRONT = ("host", "port", "config", "api_key", "help", "headless")
"""Options of vLLM's server that are no engine arguments."""
_SWITCHES = {"true": True, "false": False}


def is_worker(image: str) -> bool:
    return _WORKER.search(image) is not None


def settings_of_worker(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that a worker makes of its variables."""
    settings: dict[str, Any] = {}
    for name, value in variables.items():
        option = _RENAMED.get(name) or _option(name)
        if option == "tensor_parallel_size":
            settings[option] = UNSET  # the number of GPUs, if there are several
        elif option and value and value != UNSET and literal(value) != UNSET:
            settings[option] = _SWITCHES.get(value.lower(), value)
    return settings


def _option(name: str) -> str:
    """Return the option that a variable sets, by its name; empty if it sets none."""
    field = name.lower()
    is_known = name.isupper() and f"--{field.replace('_', '-')}" in names().options
    return field_of(field) if is_known and field not in _OF_FRONT else ""
