"""Secrets: which variables hold them, keeping them from children, and hiding their values wherever text leaves the program.

Hiding takes time in proportion to the text's length, whatever is in it. Words that secrets stand behind are searched one by one; at each
a pattern of bounded length is tried, and a value is followed to its end once, because what is hidden is not looked at again.
"""

from __future__ import annotations

import functools
import heapq
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
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
_KEYWORDS = (
    b"secret",
    b"pass",
    b"credential",
    b"key",
    b"token",
    b"cookie",
    b"auth",
    b"bearer",
    b"jwt",
    b"_pwd",
    b"_pat",
    b"dsn",
    b"webhook",
)
_ADDRESS = re.compile(rb"://(?P<rest>[^\s'\"<>]{1,2048}+)")
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
    return is_secret_name(name) or any(True for _ in _in_addresses(value.encode("utf-8", "surrogatepass")))


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
    secrets = _known | {v for name, v in os.environ.items() if is_secret_name(name) and _worth_hiding(name, v)}
    data = _without_known(text.encode("utf-8", "surrogatepass"), frozenset(secrets))
    return _without(data, _spans(data)).decode("utf-8", "surrogatepass")


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


def _spans(data: bytes) -> Iterator[Span]:
    """What looks like a secret, in order and apart from each other."""
    low = data.lower()
    looks = (*(_shape for _ in _SHAPES), *(_named for _ in _KEYWORDS), _addressed)
    places = (*((data, prefix) for prefix in _SHAPES), *((low, word) for word in (*_KEYWORDS, b"://")))
    end = 0
    for at, number in heapq.merge(*(_numbered(where, word, n) for n, (where, word) in enumerate(places))):
        if at < end:
            continue
        for start, stop in looks[number](data, low, at):
            if start >= end and stop > start:
                yield start, stop
                end = stop


def _numbered(data: bytes, word: bytes, number: int) -> Iterator[tuple[int, int]]:
    for at in _occurrences(data, word):
        yield at, number


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


def _shape(data: bytes, low: bytes, at: int) -> Iterator[Span]:
    """A value that its issuer made recognizable."""
    if at and data[at - 1 : at] in _WORD_BYTES:
        return
    for prefix, pattern in _SHAPES.items():
        if data.startswith(prefix, at) and (found := pattern.match(data, at)):
            yield found.span()


_WORD_BYTES = {bytes([each]) for each in _IDENTIFIER if each != ord("-")}


def _named(data: bytes, low: bytes, at: int) -> Iterator[Span]:
    """The value behind a name that says secret: name=value, "name": "value", --name value, a header."""
    found = _SEPARATOR.match(low, at) or _AFTER_OPTION.match(low, at)
    if found is None:
        return
    if low.startswith(b"bearer", at) and (bearer := _BEARER.match(data, at)):
        yield bearer.span("value")
        return
    window = low[max(0, at - _MAX_NAME) : at]
    before = window[len(window.rstrip(_IDENTIFIER)) :]
    separated = found.re is _SEPARATOR
    if not separated and not before.startswith(b"--"):
        return
    name, start = before + found["tail"], at - len(before)
    stated = data[start : found.end("tail")]
    header = _HEADER.fullmatch(name) is not None
    if not (
        header or _TEXT_NAME.fullmatch(name) or (stated.isupper() and is_secret_name(stated.decode("ascii", "replace")))
    ):
        return
    begins = start == 0 or data[start - 1 : start] == b"\n" or data[max(0, start - 7) : start] == b"export "
    to_line_end = _TO_LINE_END.fullmatch(name) is not None or (separated and begins and found["sign"] == b"=")
    begin, end = _value(data, found.end(), header, to_line_end)
    value = data[begin : min(end, begin + _MAX_NAME)].decode("utf-8", "replace")
    if not _SWITCH.fullmatch(value) and not (_NUMBER.fullmatch(value) and _COUNT.search(name.decode())):
        yield begin, end


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


def _addressed(data: bytes, low: bytes, at: int) -> Iterator[Span]:
    """What lets in whoever has the address that ``://`` at ``at`` stands in."""
    found = _ADDRESS.match(data, at)
    if found is None:
        return
    begin, rest = found.start("rest"), found["rest"]
    authority = _AUTHORITY.match(rest)
    assert authority is not None
    before, colon, _ = authority[0].partition(b":")
    last = rest.rfind(b"@")
    if last >= 0 and colon and not _HOST_AND_PORT.fullmatch(authority[0]):
        yield begin + len(before) + 1, begin + last
        begin, rest = begin + last + 1, rest[last + 1 :]
    elif b"@" in authority[0]:
        user = authority[0].rpartition(b"@")[0]
        if user not in _NO_PASSWORD and not low[max(0, at - 5) : at].endswith((b"ssh", b"sftp")):
            yield begin, begin + len(user)
        begin, rest = begin + len(user) + 1, rest[len(user) + 1 :]
    rest = rest.partition(b"://")[0]  # another address speaks for itself
    if hook := _HOOK.match(rest):
        yield begin + hook.start("value"), begin + len(rest)
        return
    for each in _QUERY.finditer(rest):
        yield begin + each.start("value"), begin + each.end("value")


def _in_addresses(data: bytes) -> Iterator[Span]:
    low = data.lower()
    for at in _occurrences(low, b"://"):
        yield from _addressed(data, low, at)
