"""Since when and until when vLLM has its arguments and features, for the versions listed in
``known.json`` (written by tools/api_history).

Only messages and claims use these versions: what an engine gets is decided by inspecting the
installed package (``plan.py``).
"""

import difflib
import functools
import json
import re
from pathlib import Path
from typing import Any

from .. import Unsupported, WrongRequest
from . import installed

FILE = Path(__file__).with_name("known.json")


@functools.lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def missing_argument(argument: str, version: str = "") -> Exception:
    """Return the error for an engine argument or server option that the installed vLLM does not
    take.

    ``Unsupported`` if some version has it, with the first or last one; otherwise it is a typing
    error and ``WrongRequest``.
    """
    version = version or installed.version()
    arguments = _document()["arguments"]
    if argument in arguments:
        return Unsupported(
            f"vLLM {version} has no engine argument {argument!r}",
            **_claim(arguments[argument], version),
        )
    close = difflib.get_close_matches(argument, arguments, n=3)
    versions = _document()["versions"]
    return WrongRequest(
        "no vLLM from {} to {} has an engine argument or server option {!r}, nor has {}{}".format(
            versions[0],
            versions[-1],
            argument,
            version,
            "; close to it: " + ", ".join(close) if close else "",
        )
    )


def missing_feature(feature: str, version: str = "") -> Unsupported:
    """Return the error for a feature, named as in ``known.json``, that the installed vLLM does not
    have."""
    version = version or installed.version()
    claim = _claim(_document()["features"][feature], version)
    return Unsupported(f"vLLM {version} does not have {feature}", **claim)


def _claim(span: list[str], version: str) -> dict[str, str]:
    first, last = span
    if _order(version) < _order(first):
        return {"since": first}
    if _order(version) > _order(last):
        return {"until": last}
    return {"refused_by": f"vLLM {version}"}


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
