"""What which vLLM has, as far as they were looked at (``known.json``, written by docs/build_arguments.py): since when, until when."""

import difflib
import functools
import json
import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

from .. import Unsupported, WrongRequest

FILE = Path(__file__).with_name("known.json")


@functools.lru_cache(maxsize=1)
def _document() -> Dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def lacks(argument: str, version: str) -> Exception:
    """What to raise for an engine argument or server option that the installed vLLM does not take: a typing error, or since or until when
    there is such an argument."""
    every = _document()["arguments"]
    if argument in every:
        return Unsupported(
            "vLLM {} has no engine argument {!r}".format(version, argument), **_claim(every[argument], version)
        )
    close = difflib.get_close_matches(argument, every, n=3)
    versions = _document()["versions"]
    return WrongRequest(
        "no vLLM from {} to {} has an engine argument or server option {!r}, nor has {}{}".format(
            versions[0], versions[-1], argument, version, "; close to it: " + ", ".join(close) if close else ""
        )
    )


def without(feature: str, version: str, message: str = "") -> Unsupported:
    """What to raise where the installed vLLM is without one of the features in the list."""
    span = _document()["features"][feature]
    return Unsupported(message or "vLLM {} has not: {}".format(version, feature), **_claim(span, version))


def _claim(span: List[str], version: str) -> Dict[str, str]:
    first, last = span
    if _order(version) < _order(first):
        return {"since": first}
    if _order(version) > _order(last):
        return {"until": last}
    return {"refused_by": "vLLM {}".format(version)}


def _order(version: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])
