"""Which environment variables hold secrets, judged by their names."""

from __future__ import annotations

import re

_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|COOKIE|WEBHOOK|BEARER"
    r"|(?:^|_)(?:KEY|PAT|PWD|DSN|PASS|JWT)(?:_?\d{1,3})?$|(?:^|_)AUTH(?:_|$)",
    re.I,
)
_NOT_SECRET = ("PWD", "OLDPWD")
COUNT_NAME = re.compile(r"TOKENS", re.I)
"""Name of a variable whose value, if numeric, is a count."""
SWITCH = re.compile(r"true|false|yes|no|on|off|none|null|auto|default|enabled|disabled|empty", re.I)
NUMBER = re.compile(r"[\d.]+")
_MIN_LENGTH = 4


def is_secret_name(name: str) -> bool:
    """Return whether the variable's name says that it holds a secret."""
    return name not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def is_maskable(name: str, value: str) -> bool:
    """Return whether a secret variable's value should be masked: not a switch, a count, or so short
    that masking would garble text."""
    if SWITCH.fullmatch(value) or len(value) < _MIN_LENGTH:
        return False
    return not (NUMBER.fullmatch(value) and COUNT_NAME.search(name))
