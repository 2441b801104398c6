"""The hunters by name, and the findings in files of any of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import UsageError
from ..util import codec
from ..util.documents import load_json
from ..util.validation import format_value
from .finding import MAX_BYTES
from .hunter import Hunter

HUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "api": "api.api_hunter:ApiHunter",
        "engines": "engines.pair_hunter:PairHunter",
        "lifecycle": "lifecycle.story_hunter:StoryHunter",
        "parsers": "parsers.parser_hunter:ParserHunter",
        "schemas": "schemas.schema_hunter:SchemaHunter",
    }
)
"""Where each hunter is. It is imported when it is used."""


def hunter_named(name: str) -> type[Hunter[Any, Any, Any, Any, Any]]:
    """Return the hunter of a name in ``HUNTERS``."""
    module, _, kind = HUNTERS[name].partition(":")
    found: type[Hunter[Any, Any, Any, Any, Any]]
    found = getattr(importlib.import_module(f".{module}", __package__), kind)
    return found


def load(path: Path, hunter: str = "") -> Any:
    """Read and validate the finding in a file, of this hunter if one is named.

    Raises ``UsageError`` that lists what is wrong with it.
    """
    document = load_json(path, MAX_BYTES, what="a finding of `vllm-regress fuzz`")
    name = str(document.get("hunter")) if isinstance(document, dict) else ""
    if name not in ([hunter] if hunter else HUNTERS):
        allowed = hunter or ", ".join(HUNTERS)
        raise UsageError(
            f"{path}: not a finding of `vllm-regress fuzz`: hunter = {format_value(name)}; "
            f"allowed: {allowed}"
        )
    document.pop("command", None)  # for people
    return codec.decode(hunter_named(name).kind, document, path)
