"""Secrets are kept from child processes and masked in text.

Text is masked where it enters the controller: an error frame from a child
(``processes/channel.py``), the output of a process (``mask_log``), and a result file
(``cases/results.py``). From then on it has the type ``Masked`` and is not masked again. Functions
that need masked text require this type, so mypy reports text that was not masked. ``mask`` is for
other text, such as the message of an exception in a test, and for output to users, which may quote
input.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote

from ...errors import Masked as Masked
from .scanner import SecretScanner, Span, occurrences, without_overlap
from .words import NUMBER, is_maskable, is_secret_name

HIDDEN = "***"
_STARS, _ELLIPSIS = HIDDEN.encode(), b"..."
_MIN_LENGTH = 6
"""Shorter secrets, and numbers, are masked only as whole words."""
_MIN_LINE = 16
_MAX_HALF = 250
"""Characters that a shortened repr keeps on each side of the ellipsis."""
_known: set[str] = set()


def is_secret(name: str, value: str) -> bool:
    """Return whether the variable's name says that it is a secret, or its value is a URL with a
    password, a token or a webhook path."""
    return is_secret_name(name) or any(
        True for _ in SecretScanner(value.encode("utf-8", "surrogatepass")).url_credentials()
    )


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without the variables that hold secrets."""
    return {name: value for name, value in environment.items() if not is_secret(name, value)}


def register(secret: str) -> str:
    """Mask ``secret`` from now on. Returns it."""
    if secret:
        _known.add(secret)
    return secret


def register_all(environment: Mapping[str, str]) -> None:
    """Mask the secrets among variables that a child was given explicitly."""
    for name, value in environment.items():
        if is_secret(name, value) and is_maskable(name, value):
            register(value)


def mask_log(output: str | bytes) -> Masked:
    """Return the output of a process, a line or all of it, as masked text.

    Bytes that are not UTF-8 are replaced.
    """
    return mask(output if isinstance(output, str) else output.decode("utf-8", errors="replace"))


def join_masked(separator: str, texts: Iterable[Masked]) -> Masked:
    """Join masked texts."""
    return Masked(separator.join(texts))


def mask(text: str) -> Masked:
    """Return ``text`` with every known secret, and everything that looks like one, replaced by
    ``***``. Linear in its length."""
    return masker()(text)


def masker() -> Callable[[str], Masked]:
    """Return a ``mask`` for many texts. It looks up the known secrets only once."""
    registered = frozenset(_known)
    secrets = registered | {
        value
        for name, value in os.environ.items()
        if is_secret_name(name) and is_maskable(name, value)
    }

    def hide(text: str) -> Masked:
        data = _mask_values(text.encode("utf-8", "surrogatepass"), secrets, registered)
        return Masked(
            _replace_spans(data, SecretScanner(data).spans()).decode("utf-8", "surrogatepass")
        )

    return hide


def _mask_values(data: bytes, secrets: frozenset[str], registered: frozenset[str]) -> bytes:
    """Replace every spelling of ``secrets`` by stars; those in ``registered`` inside words, too."""
    spellings = _all_spellings(secrets, registered)
    for spelling, whole_word in spellings:
        if spelling in data:
            data = (
                re.sub(rb"(?<!\w)" + re.escape(spelling) + rb"(?!\w)", _STARS, data)
                if whole_word
                else data.replace(spelling, _STARS)
            )
    if _ELLIPSIS in data:
        data = _mask_halves(
            data, [spelling for spelling, whole_word in spellings if not whole_word]
        )
    return data


def _replace_spans(data: bytes, spans: Iterable[Span]) -> bytes:
    """Replace the spans, which are sorted and do not overlap, by stars."""
    parts: list[bytes] = []
    at = 0
    for start, end in spans:
        parts += (data[at:start], _STARS)
        at = end
    return b"".join((*parts, data[at:])) if parts else data


@functools.lru_cache(maxsize=8)
def _all_spellings(
    secrets: frozenset[str], registered: frozenset[str]
) -> tuple[tuple[bytes, bool], ...]:
    """Return every spelling of every secret, longest first, and whether it is masked as a whole
    word only."""
    spellings = {
        spelling.encode("utf-8", "surrogatepass"): secret not in registered
        and (len(secret) < _MIN_LENGTH or bool(NUMBER.fullmatch(secret)))
        for secret in secrets
        for spelling in _spellings(secret)
    }
    return tuple(sorted(spellings.items(), key=lambda item: len(item[0]), reverse=True))


def _spellings(secret: str) -> Iterator[str]:
    """Yield the secret as it is, as JSON, as a repr, percent-encoded, and line by line."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield quote(secret, safe="", errors="surrogatepass")
    if "\n" in secret:
        yield from (line.strip() for line in secret.splitlines() if len(line.strip()) >= _MIN_LINE)
    if secret.lower().startswith(("bearer ", "basic ")) and len(secret.split()[-1]) >= _MIN_LENGTH:
        yield secret.split()[-1]


def _mask_halves(data: bytes, spellings: Iterable[bytes]) -> bytes:
    """Mask what a shortened repr in a traceback leaves of a secret on either side of ``...``."""
    ends = [
        (spelling[:_MAX_HALF], spelling[-_MAX_HALF:])
        for spelling in spellings
        if len(spelling) > _MIN_LENGTH
    ]
    ends = [
        (head, tail)
        for head, tail in ends
        if head[:_MIN_LENGTH] in data or tail[-_MIN_LENGTH:] in data
    ]

    def spans() -> Iterator[Span]:
        for at in occurrences(data, _ELLIPSIS):
            before, after = data[max(0, at - _MAX_HALF) : at], data[at + 3 : at + 3 + _MAX_HALF]
            left = max((_overlap(before, head) for head, _ in ends), default=0)
            right = max(
                (_overlap(tail[::-1], after[::-1], reverse=True) for _, tail in ends), default=0
            )
            if left:
                yield at - left, at
            if right:
                yield at + 3, at + 3 + right

    return _replace_spans(data, without_overlap(spans())) if ends else data


def _overlap(text: bytes, secret: bytes, *, reverse: bool = False) -> int:
    """Return how many leading bytes of ``secret`` end ``text``.

    With ``reverse`` both are reversed, and ``text`` holds the secret.
    """
    if reverse:
        text, secret = secret, text
    if secret[:_MIN_LENGTH] not in text:
        return 0
    longest = min(len(text), len(secret))
    return next(
        (size for size in range(longest, _MIN_LENGTH - 1, -1) if text.endswith(secret[:size])), 0
    )
