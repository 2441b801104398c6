"""Secrets: which variables hold them, keeping them from children, and hiding their values wherever text leaves the program.

Hiding takes time in proportion to the text's length, whatever is in it. Words that secrets stand behind are searched one by one; at each
a pattern of bounded length is tried, and a value is followed to its end once, because what is hidden is not looked at again.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal
from urllib.parse import quote

HIDDEN = "***"
_STARS, _CUT = HIDDEN.encode(), b"..."
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|COOKIE|WEBHOOK|BEARER"
    r"|(?:^|_)(?:KEY|PAT|PWD|DSN|PASS|JWT)(?:_?\d{1,3})?$|(?:^|_)AUTH(?:_|$)",
    re.I,
)
_NOT_SECRET = ("PWD", "OLDPWD")
_COUNT = re.compile(r"TOKENS", re.I)
"""A number in such a variable counts something."""
_SWITCH = re.compile(r"true|false|yes|no|on|off|none|null|auto|default|enabled|disabled", re.I)
_NUMBER = re.compile(r"[\d.]+")
_MIN_LENGTH = 6
"""Of a value that is hidden wherever it stands; a shorter one, and a number, only where it stands by itself."""
_MIN_ALONE = 4
_MIN_LINE = 16
_MAX_HALF = 250
"""Characters that a shortened repr leaves on one side."""

# Names in running text: narrower than those of variables, because much of what vLLM says is about tokens and keys.
_TEXT_NAME = re.compile(
    rb"[\w-]*(?:secret|password|passwd|passphrase)(?:[_-](?:id|value|text|plain|file))?"
    rb"|(?:[\w-]*[_-])?(?:credentials?|bearer|jwt|webhook|api[_-]?key"
    rb"|(?:access|private|secret|signing|encryption|license|account)[_-]?key(?:[_-]id)?"
    rb"|(?:api|access|auth|refresh|session|bearer|hf|hub|github|gitlab|secret|id|bot|personal|deploy)[_-]?token)"
    rb"|[\w-]*[_-](?:pass|pwd|pat|dsn)|--(?:token|pass|auth|key)"
)
_HEADER = re.compile(rb"(?:[\w-]*-)?(?:authorization|cookie|api-key|auth-token)")
_TO_LINE_END = re.compile(rb"(?:set-)?cookie")
_IDENTIFIER = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_MAX_NAME = 64
_SEPARATOR = re.compile(rb"(?P<tail>[\w-]{0,40}+)\\{0,4}['\"]?[ \t]{0,8}(?P<sign>=>|:=|[=:])[ \t]{0,8}")
_AFTER_OPTION = re.compile(rb"(?P<tail>[\w-]{0,40}+)(?:\\{0,4}['\"],)?[ \t\n]{1,8}(?!-)")
_OPENING = re.compile(rb"[brfuBRFU]{0,2}(?P<mark>\\{0,4}['\"])")
_SCHEME = re.compile(rb"(?:bearer|basic|token|digest|negotiate)[ \t]{1,8}", re.I)
_WORD = re.compile(rb"[^\s'\",;]*+")
_LINE = re.compile(rb"[^\n]*+")
_BEARER = re.compile(rb"bearer[ \t]{1,8}(?P<value>[\w\-./+=~]{8,}+)", re.I)
# What issuers make recognizable, wherever it stands.
_SHAPES: Mapping[bytes, re.Pattern[bytes]] = {
    b"hf_": re.compile(rb"hf_[A-Za-z0-9]{16,}+"),
    b"sk-": re.compile(rb"sk-[A-Za-z0-9_-]{16,}+"),
    b"AKIA": re.compile(rb"AKIA[0-9A-Z]{16}"),
    b"ASIA": re.compile(rb"ASIA[0-9A-Z]{16}"),
    **{f"gh{kind}_".encode(): re.compile(rf"gh{kind}_[A-Za-z0-9]{{20,}}+".encode()) for kind in "pousr"},
    b"github_pat_": re.compile(rb"github_pat_\w{20,}+"),
    b"glpat-": re.compile(rb"glpat-[\w-]{16,}+"),
    b"xox": re.compile(rb"xox[abeoprs]-[\w-]{10,}+"),
    b"pypi-": re.compile(rb"pypi-[\w-]{16,}+"),
    b"AIza": re.compile(rb"AIza[\w-]{30,}+"),
    b"eyJ": re.compile(rb"eyJ[\w-]{10,}+\.[\w-]{10,}+\.[\w-]*+"),
    b"-----BEGIN ": re.compile(
        rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]++|-(?!----END ))*+(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
    ),
}
_KEYWORDS = tuple(b"secret pass credential key token cookie auth bearer jwt _pwd _pat dsn webhook".split())
_PIECE = 1 << 16
_ADDRESS_SIGN = b"://"
_MAX_ADDRESS = 2048
_RUN = re.compile(rb"[^\s'\"<>]*+")
_AUTHORITY = re.compile(rb"[^/?#]*+")
_HOST_AND_PORT = re.compile(rb"(?:localhost|\[[0-9a-f:]++\]|[\w-]++(?:\.[\w-]++)++):\d{1,5}")
_HOOK = re.compile(
    rb"(?:hooks\.[^/]{1,200}+/|[^/]{1,200}+/(?:[^/]{0,40}+/){0,3}?(?:[^/]{0,40}?webhooks?[^/]{0,20}/|bot(?=\d)))(?P<value>.++)",
    re.I | re.S,
)
_QUERY = re.compile(
    rb"[?&;][\w-]{0,40}?(?:token|sig|signature|key|secret|password|code|auth|credential)=(?P<value>[^&#]++)", re.I
)
_NO_PASSWORD = (b"git", b"root", b"user")
_known: set[str] = set()

Span = tuple[int, int]


def is_secret_name(name: str) -> bool:
    """The variable's name says that it holds a secret."""
    return name not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def is_secret(name: str, value: str) -> bool:
    """The variable's name says so, or its value is an address that lets in whoever has it: with a password, a token, or of a webhook."""
    return is_secret_name(name) or any(True for _ in _Text(value.encode("utf-8", "surrogatepass")).addressed())


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
        if is_secret(name, value) and _worth_hiding(name, value):
            register(value)


def mask(text: str) -> str:
    """``text`` with every known secret value, and everything that looks like one, replaced by ``***``. In time linear in its length."""
    return masker()(text)


def masker() -> Callable[[str], str]:
    """``mask``, for many texts: which values are known is looked up once."""
    secrets = frozenset(
        _known | {v for name, v in os.environ.items() if is_secret_name(name) and _worth_hiding(name, v)}
    )

    def hide(text: str) -> str:
        data = _without_known(text.encode("utf-8", "surrogatepass"), secrets)
        return _without(data, _Text(data).spans()).decode("utf-8", "surrogatepass")

    return hide


def _without(data: bytes, spans: Iterable[Span]) -> bytes:
    """``data`` with the spans, in order and apart from each other, as stars."""
    parts: list[bytes] = []
    at = 0
    for start, end in spans:
        parts += (data[at:start], _STARS)
        at = end
    return b"".join((*parts, data[at:])) if parts else data


def _without_known(data: bytes, secrets: frozenset[str]) -> bytes:
    for form, alone in _all_forms(secrets):
        if form in data:
            data = (
                re.sub(rb"(?<!\w)" + re.escape(form) + rb"(?!\w)", _STARS, data)
                if alone
                else data.replace(form, _STARS)
            )
    if _CUT in data:
        data = _without_halves(data, [form for form, alone in _all_forms(secrets) if not alone])
    return data


@functools.lru_cache(maxsize=8)
def _all_forms(secrets: frozenset[str]) -> tuple[tuple[bytes, bool], ...]:
    """Every form of every secret, the longest first, and whether it is only hidden where it stands by itself."""
    found = {
        form.encode("utf-8", "surrogatepass"): secret not in _known
        and (len(secret) < _MIN_LENGTH or bool(_NUMBER.fullmatch(secret)))
        for secret in secrets
        for form in _forms(secret)
    }
    return tuple(sorted(found.items(), key=lambda each: len(each[0]), reverse=True))


def _forms(secret: str) -> Iterator[str]:
    """The secret as it is, and as JSON, a repr, an address and single lines would have it."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield quote(secret, safe="", errors="surrogatepass")
    if "\n" in secret:
        yield from (line.strip() for line in secret.splitlines() if len(line.strip()) >= _MIN_LINE)
    if secret.lower().startswith(("bearer ", "basic ")) and len(secret.split()[-1]) >= _MIN_LENGTH:
        yield secret.split()[-1]


def _without_halves(data: bytes, forms: Iterable[bytes]) -> bytes:
    """Tracebacks shorten a repr: what is left of a secret on either side of ``...`` goes too."""
    ends = [(form[:_MAX_HALF], form[-_MAX_HALF:]) for form in forms if len(form) > _MIN_LENGTH]
    ends = [(head, tail) for head, tail in ends if head[:_MIN_LENGTH] in data or tail[-_MIN_LENGTH:] in data]

    def spans() -> Iterator[Span]:
        for at in _occurrences(data, _CUT):
            before, after = data[max(0, at - _MAX_HALF) : at], data[at + 3 : at + 3 + _MAX_HALF]
            left = max((_overlap(before, head) for head, _ in ends), default=0)
            right = max((_overlap(tail[::-1], after[::-1], reverse=True) for _, tail in ends), default=0)
            if left:
                yield at - left, at
            if right:
                yield at + 3, at + 3 + right

    return _without(data, _apart(spans())) if ends else data


def _overlap(text: bytes, secret: bytes, *, reverse: bool = False) -> int:
    """How much of the beginning of ``secret`` ends ``text`` (with ``reverse`` both are given backwards, and the other way round)."""
    if reverse:
        text, secret = secret, text
    if secret[:_MIN_LENGTH] not in text:
        return 0
    longest = min(len(text), len(secret))
    return next((n for n in range(longest, _MIN_LENGTH - 1, -1) if text.endswith(secret[:n])), 0)


def _worth_hiding(name: str, value: str) -> bool:
    """Not a switch, nor so short that hiding it would make text unreadable, nor a number that counts something."""
    if _SWITCH.fullmatch(value) or len(value) < _MIN_ALONE:
        return False
    return not (_NUMBER.fullmatch(value) and _COUNT.search(name))


class _Text:
    """A text in which what looks like a secret is looked for, once from its beginning to its end.

    Words are found a piece at a time, so that where they stand takes little memory, and a piece without them takes next to no time.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._low = data.lower()
        self._run_end = 0
        named = (self._bearer if word == b"bearer" else self._named for word in _KEYWORDS)
        looks = (*(self._shape for _ in _SHAPES), *named, self._addressed)
        places = (*((data, prefix) for prefix in _SHAPES), *((self._low, word) for word in (*_KEYWORDS, _ADDRESS_SIGN)))
        self._words = tuple((*place, look) for place, look in zip(places, looks, strict=True))

    def spans(self) -> Iterator[Span]:
        """What looks like a secret, in order and apart from each other."""
        end = 0
        for at, look in self._places():
            if at < end:
                continue
            for start, stop in look(at):
                if start >= end and stop > start:
                    yield start, stop
                    end = stop

    def addressed(self) -> Iterator[Span]:
        """What lets in whoever has the addresses in the text."""
        for at in _occurrences(self._low, _ADDRESS_SIGN):
            yield from self._addressed(at)

    def _places(self) -> Iterator[tuple[int, Callable[[int], Iterable[Span]]]]:
        """Where a word stands that a secret may stand behind, in order, and how to look there."""
        many = len(self._words)
        looks = [look for _, _, look in self._words]
        for start in range(0, len(self._data), _PIECE):
            found: list[int] = []
            for number, (where, word, _) in enumerate(self._words):
                limit = start + _PIECE + len(word) - 1
                at = where.find(word, start, limit)
                while at >= 0:
                    found.append(at * many + number)
                    at = where.find(word, at + len(word), limit)
            found.sort()
            for place in found:
                yield place // many, looks[place % many]

    def _shape(self, at: int) -> Iterator[Span]:
        """A value that its issuer made recognizable."""
        if at and self._data[at - 1 : at] in _WORD_BYTES:
            return
        for prefix, pattern in _SHAPES.items():
            if self._data.startswith(prefix, at) and (found := pattern.match(self._data, at)):
                yield found.span()

    def _bearer(self, at: int) -> tuple[Span, ...]:
        """The value behind ``Bearer``, or behind a name with this word in it."""
        found = _BEARER.match(self._data, at)
        if found and (_SEPARATOR.match(self._low, at) or _AFTER_OPTION.match(self._low, at)):
            return (found.span("value"),)
        return self._named(at)

    def _named(self, at: int) -> tuple[Span, ...]:
        """The value behind a name that says secret: name=value, "name": "value", --name value, a header."""
        data, low = self._data, self._low
        found = _SEPARATOR.match(low, at)
        separated = found is not None
        window = low[at - _MAX_NAME : at] if at > _MAX_NAME else low[:at]
        start = at - len(window) + len(window.rstrip(_IDENTIFIER))
        if found is None and low.startswith(b"--", start):
            found = _AFTER_OPTION.match(low, at)
        if found is None:
            return ()
        stated = data[start : found.end(1)]
        kind = _kind_of_name(stated)
        if kind is None:
            return ()
        begins = start == 0 or data[start - 1 : start] == b"\n" or data[max(0, start - 7) : start] == b"export "
        to_line_end = kind == "cookie" or (separated and begins and found["sign"] == b"=")
        begin, end = _value(data, found.end(), kind != "name", to_line_end)
        value = data[begin : min(end, begin + _MAX_NAME)].decode("utf-8", "replace")
        counts = _NUMBER.fullmatch(value) and _COUNT.search(stated.decode("ascii", "replace"))
        return () if counts or _SWITCH.fullmatch(value) else ((begin, end),)

    def _addressed(self, at: int) -> Iterator[Span]:
        """What lets in whoever has the address that ``://`` at ``at`` stands in."""
        begin = at + len(_ADDRESS_SIGN)
        if self._run_end < begin:  # addresses that stand in one another end together: the end is looked for once
            run = _RUN.match(self._data, begin)
            self._run_end = run.end() if run else begin
        rest = self._data[begin : min(self._run_end, begin + _MAX_ADDRESS)]
        last = rest.rfind(b"@")
        if last < 0:
            own = self._low[begin : begin + len(rest.partition(_ADDRESS_SIGN)[0])]
            if b"=" not in own and b"hook" not in own and b"/bot" not in own:
                return
        authority = _AUTHORITY.match(rest)
        assert authority is not None
        before, colon, _ = authority[0].partition(b":")
        if last >= 0 and colon and not _HOST_AND_PORT.fullmatch(authority[0]):
            yield begin + len(before) + 1, begin + last
            begin, rest = begin + last + 1, rest[last + 1 :]
        elif b"@" in authority[0]:
            user = authority[0].rpartition(b"@")[0]
            if user not in _NO_PASSWORD and not self._low[max(0, at - 5) : at].endswith((b"ssh", b"sftp")):
                yield begin, begin + len(user)
            begin, rest = begin + len(user) + 1, rest[len(user) + 1 :]
        rest = rest.partition(_ADDRESS_SIGN)[0]  # another address speaks for itself
        if hook := _HOOK.match(rest):
            yield begin + hook.start("value"), begin + len(rest)
            return
        for each in _QUERY.finditer(rest):
            yield begin + each.start("value"), begin + each.end("value")


@functools.lru_cache(maxsize=4096)
def _kind_of_name(stated: bytes) -> Literal["name", "header", "cookie"] | None:
    """What the name of a secret is, or None where it names none."""
    name = stated.lower()
    if _HEADER.fullmatch(name):
        return "cookie" if _TO_LINE_END.fullmatch(name) else "header"
    says = _TEXT_NAME.fullmatch(name) or (stated.isupper() and is_secret_name(stated.decode("ascii", "replace")))
    return "name" if says else None


def _apart(spans: Iterable[Span]) -> Iterator[Span]:
    end = 0
    for start, stop in spans:
        start = max(start, end)
        if stop > start:
            yield start, stop
            end = stop


def _occurrences(data: bytes, word: bytes) -> Iterator[int]:
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + len(word))


_WORD_BYTES = {bytes([each]) for each in _IDENTIFIER if each != ord("-")}


def _value(data: bytes, at: int, header: bool, to_line_end: bool) -> Span:
    """Where the value that begins at ``at`` begins and ends: between its quotes, else to the end of the word or the line."""
    if quoted := _OPENING.match(data, at):
        mark, begin = quoted["mark"], quoted.end()
        end = _closing(data, begin, mark)
        return begin, end if end >= 0 else _end_of_line(data, begin)
    if header and (scheme := _SCHEME.match(data, at)):
        at = scheme.end()
    found = (_LINE if to_line_end else _WORD).match(data, at)
    assert found is not None
    end = found.end()
    while to_line_end and end > at and data[end - 1 : end] in (b"'", b'"', b"\r"):
        end -= 1
    return at, end


def _closing(data: bytes, at: int, mark: bytes) -> int:
    """Where ``mark`` closes what it opened, on the same line; -1 where it does not. A quote behind a backslash closes nothing."""
    pattern = _CLOSING[mark[-1:]] if len(mark) == 1 else None
    if pattern is not None:
        found = pattern.match(data, at)
        return found.end() if found and data[found.end() : found.end() + 1] == mark else -1
    end = data.find(mark, at)
    return end if b"\n" not in data[at : max(at, end)] else -1


def _end_of_line(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return end if end >= 0 else len(data)


_CLOSING = {mark: re.compile(rb"(?:[^\\\n" + mark + rb"]++|\\[^\n])*+") for mark in (b"'", b'"')}
