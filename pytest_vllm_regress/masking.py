"""Secrets: which variables hold them, keeping them from children, and hiding their values wherever text leaves the program."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|_KEY$|_PAT$|^AUTH|COOKIE", re.I)
_SECRET_TEXT = re.compile(
    r"(?P<head>\b(?:authorization:\s*bearer|bearer)\s+|\b(?:[\w-]*[_-])?(?:token|secret|password|passwd|api[_-]?key)['\"]?\s*[=:]\s*['\"]?)"
    r"(?P<value>[\w\-./+]{8,})",
    re.I,
)
_MIN_LENGTH = 6
_known: set[str] = set()


def is_secret_name(name: str) -> bool:
    """The variable's name says that it holds a secret."""
    return bool(_SECRET_NAME.search(name))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the variables that hold secrets."""
    return {name: value for name, value in environment.items() if not is_secret_name(name)}


def register(secret: str) -> str:
    """Hide ``secret`` from now on; returns it."""
    _known.add(secret)
    return secret


def mask(text: str) -> str:
    """``text`` with every known secret value, and everything that looks like one, replaced by ``***``."""
    values = _known | {v for n, v in os.environ.items() if is_secret_name(n) and len(v) >= _MIN_LENGTH}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***")
    return _SECRET_TEXT.sub(lambda found: found["head"] + "***", text)
