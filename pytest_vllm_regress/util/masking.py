"""Secrets: which variables hold them, keeping them from children, and hiding their values wherever text leaves the program."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

HIDDEN = "***"
_CUT = "..."
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|COOKIE"
    r"|(?:^|_)(?:KEY|PAT|PWD|DSN)$|(?:^|_)AUTH(?:_|$)",
    re.I,
)
_NOT_SECRET = ("PWD", "OLDPWD")
_URL_PASSWORD = re.compile(r"(?P<head>\w://[^/\s:@]*:)(?P<value>[^/\s@]{1,500})(?=@)")
_KEEPING_HEAD = (
    _URL_PASSWORD,
    re.compile(
        r"(?P<head>\b(?:authorization|x-api-key|cookie|set-cookie)['\"]?\s*[:=]\s*b?['\"]?(?:(?:bearer|basic|token)\s+)?)(?P<value>[^\s'\",;]{6,})",
        re.I,
    ),
    re.compile(r"(?P<head>\bbearer\s+)(?P<value>[\w\-./+=]{8,})", re.I),
    re.compile(
        r"(?P<head>\b(?:[\w-]*[_-])?(?:secret|password|passwd|passphrase|api[_-]?key|(?:access|private|secret)[_-]?key|"
        r"(?:api|access|auth|refresh|session|hf|hub|github|secret|id)[_-]?token)['\"]?\s*[=:]\s*['\"]?)(?P<value>[^\s'\",;]{6,})",
        re.I,
    ),
)
# What issuers make recognizable, wherever it stands.
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|pypi-[\w-]{16,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_MIN_LENGTH = 6
_MIN_LINE = 16
_PLAIN = re.compile(r"(?:true|false|none|null|auto|default|enabled|disabled|[\d.]+)", re.I)
_known: set[str] = set()


def is_secret_name(name: str) -> bool:
    """The variable's name says that it holds a secret."""
    return name not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def is_secret(name: str, value: str) -> bool:
    """The variable's name says so, or its value is an address with a password."""
    return is_secret_name(name) or bool(_URL_PASSWORD.search(value))


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the variables that hold secrets."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def register(secret: str) -> str:
    """Hide ``secret`` from now on; returns it."""
    if secret:
        _known.add(secret)
    return secret


def register_all(environment: Mapping[str, str]) -> None:
    """Hide the secrets among variables that a child was given on purpose."""
    for name, value in environment.items():
        if is_secret(name, value) and _worth_hiding(value):
            register(value)


def mask(text: str) -> str:
    """``text`` with every known secret value, and everything that looks like one, replaced by ``***``."""
    secrets = _known | {value for name, value in os.environ.items() if is_secret_name(name) and _worth_hiding(value)}
    for value in sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True):
        text = _without_halves(text.replace(value, HIDDEN), value)
    text = _SHAPES.sub(HIDDEN, text)
    for pattern in _KEEPING_HEAD:
        text = pattern.sub(lambda found: found["head"] + HIDDEN, text)
    return text


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, and as JSON, a repr, an address and single lines would have it."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield quote(secret, safe="")
    if "\n" in secret:
        yield from (line.strip() for line in secret.splitlines() if len(line.strip()) >= _MIN_LINE)
    if secret.lower().startswith(("bearer ", "basic ")) and len(secret.split()[-1]) >= _MIN_LENGTH:
        yield secret.split()[-1]


def _without_halves(text: str, secret: str) -> str:
    """Tracebacks shorten a repr: what is left of the secret on either side of ``...`` goes too."""
    if _CUT in text and (secret[:_MIN_LENGTH] in text or secret[-_MIN_LENGTH:] in text):
        for length in range(len(secret) - 1, _MIN_LENGTH - 1, -1):
            text = text.replace(secret[:length] + _CUT, HIDDEN + _CUT).replace(_CUT + secret[-length:], _CUT + HIDDEN)
    return text


def _worth_hiding(value: str) -> bool:
    """Not a number, a switch, or so short that hiding it would make text unreadable."""
    return len(value) >= _MIN_LENGTH and not _PLAIN.fullmatch(value)
