"""Secrets are kept from child processes and masked in text.

Text is masked where it enters the controller: an error frame from a child
(``processes/channel.py``), the output of a process (``mask_log``), and a result file
(``cases/results.py``). From then on it has the type ``Masked`` and is not masked again. Functions
that need masked text require this type, so mypy reports text that was not masked. ``mask`` is for
other text, such as the message of an exception in a test, and for output to users, which may quote
input.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from ...errors import Masked
from .scanner import SecretScanner
from .values import HIDDEN, mask_values, replace_spans
from .variables import is_maskable, is_secret_name

__all__ = [
    "HIDDEN",
    "Masked",
    "is_secret",
    "join_masked",
    "mask",
    "mask_log",
    "masker",
    "register",
    "register_all",
    "without_secrets",
]
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
        data = mask_values(text.encode("utf-8", "surrogatepass"), secrets, registered)
        return Masked(
            replace_spans(data, SecretScanner(data).spans()).decode("utf-8", "surrogatepass")
        )

    return hide
