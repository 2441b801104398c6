"""Records of measurements: a JSON file of named entries, and the Markdown tables made from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError
from .documents import load_json
from .files import write_atomically

MAX_BYTES = 4 * 1024 * 1024
T = TypeVar("T")


def read_record(path: Path, command: str, parse: Callable[[str, Any], T]) -> dict[str, T]:
    """Return the entries of a record, each parsed from its key and JSON value; an empty dict
    without a file.

    ``command``: the command that wrote it. Raises ``UsageError`` for an invalid file.
    """
    if not path.exists():
        return {}
    what = f"a record of vllm-regress {command}"
    try:
        document = load_json(path, MAX_BYTES, what=what)
        return {key: parse(key, value) for key, value in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: not {what}: {error!r}. Give another file by --record") from None


def write_record(path: Path, entries: Mapping[str, Any]) -> None:
    """Write the JSON values in their order, where ``read_record`` finds them."""
    write_atomically(path, json.dumps(entries, indent=1) + "\n")
