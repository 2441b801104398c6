"""The files of a package in uv's pylock, and which of them suit this machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit


def compatible_files(package: Mapping[str, Any], python: str) -> list[dict[str, Any]]:
    """Return the files in a package's pylock entry for that Python and this machine: wheels, else
    the source."""
    wheels = [
        wheel for wheel in package.get("wheels", ()) if _is_compatible(file_name(wheel), python)
    ]
    return wheels or [package[key] for key in ("sdist", "archive") if key in package]


def _is_compatible(wheel: str, python: str) -> bool:
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename

    version = tuple(int(part) for part in python.split("."))
    tags = (
        *cpython_tags(version, platforms=["any"]),
        *compatible_tags(version, f"cp{python.replace('.', '')}", platforms=["any"]),
    )
    pairs = {(tag.interpreter, tag.abi) for tag in tags}
    for tag in parse_wheel_filename(wheel)[3]:
        platform_matches = tag.platform == "any" or (
            tag.platform.startswith(("manylinux", "linux_"))
            and tag.platform.endswith(f"_{platform.machine()}")
        )
        if platform_matches and (tag.interpreter, tag.abi) in pairs:
            return True
    return False


def file_name(entry: Mapping[str, Any]) -> str:
    """Return the name of a file in uv's pylock."""
    return (
        entry.get("name")
        or unquote(urlsplit(entry.get("url") or entry["path"]).path).rpartition("/")[2]
    )
