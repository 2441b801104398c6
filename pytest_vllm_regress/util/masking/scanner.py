"""Find text that looks like a secret: well-known token formats, values of suspicious names,
credentials in URLs.

The scan is linear in the length of the text, whatever the text contains. Keywords are located with
``bytes.find``; at each one a pattern of bounded length is tried. A value is followed to its end
only once, because the scan resumes behind it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from ..paths import DATA
from .words import (
    COUNT_NAME,
    NUMBER,
    SWITCH,
    begins_sentence,
    is_code,
    is_secret_name,
    is_sentence,
    looks_random,
)

Span = tuple[int, int]
# The shortest token that is recognized has 15 characters. A run of as many that tokens consist of
# becomes a run of ``a``, everything else blanks.
_RUN_SIGN = b"a" * 15
_RUN_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_RUN_TABLE = bytes(ord("a") if code in _RUN_CHARACTERS else ord(" ") for code in range(256))
# detect-secrets 1.5 is not used, because it takes 85 s for 10 MB of a log (6 s without its
# keywords), requires ``requests``, and has no formats for NVIDIA, Databricks, Groq or Google's
# access tokens. Its formats with a fixed prefix are among these.
_FORMATS = re.findall(r"^[^#\n].*", (DATA / "secret_formats.txt").read_text(), re.MULTILINE)
# The beginning of a word. An escape sequence or an escaped character may stand before it:
# "\nhf_...", "\x1b[32mhf_...", "%3Dhf_...".
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrtbf0])|(?<=[\[;\d]\dm)|(?<=\[m)|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2}))"
_TOKEN = re.compile(
    f"{_START}(?:{'|'.join(f'(?:{part})' for part in _FORMATS)})".encode(), re.ASCII
)
# Narrower than the names of variables, because vLLM logs a lot about tokens and keys that are no
# secrets.
_TEXT_NAME = re.compile(
    rb"[\w-]*(?:secret|password|passwd|passphrase)(?:[_-](?:id|value|text|plain|file))?"
    rb"|[\w-]*(?:api|access|shared)[_-]?key(?:[_-]?id)?"
    rb"|(?:[\w-]*[_-])?(?:credentials?|bearer|jwt|webhook"
    rb"|(?:private|secret|signing|encryption|license|account)[_-]?key(?:[_-]id)?"
    rb"|(?:api|access|auth|refresh|session|bearer|hf|hub|github|gitlab|secret|id|bot|personal|deploy)[_-]?token)"
    rb"|[\w-]*[_-](?:pass|pwd|pat|dsn)|--(?:token|pass|auth|key)"
)
_HEADER = re.compile(rb"(?:[\w-]*-)?(?:authorization|cookie|api-key|auth-token)")
_TO_LINE_END = re.compile(rb"(?:set-)?cookie")
_IDENTIFIER = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_MAX_NAME = 64
_MAX_SENTENCE = 120
_SEPARATOR = re.compile(
    rb"(?P<tail>[\w-]{0,40}+)\\{0,4}['\"]?[ \t]{0,8}(?P<sign>=>|:=|[=:])[ \t]{0,8}"
)
_AFTER_OPTION = re.compile(rb"(?P<tail>[\w-]{0,40}+)(?:\\{0,4}['\"],)?[ \t\n]{1,8}(?!-)")
_OPENING = re.compile(rb"[brfuBRFU]{0,2}(?P<mark>\\{0,4}['\"])")
_BREAK = rb"(?:[ \t]|\\?\r?\n|\\[nrt])"
_SCHEME = re.compile(rb"(?:bearer|basic|token|digest|negotiate)" + _BREAK + rb"{1,16}", re.I)
_WORD = re.compile(rb"[^\s'\",;]*+")
_LINE = re.compile(rb"[^\n]*+")
_WEAK_NAME = re.compile(rb"_?(?:auth|token)|x-token")
"""Names whose values are secrets only if they look like it: vLLM shows a lot of tokens that are
words."""
_LOGPROB = re.compile(
    rb"\\{0,4}['\"][\s,]{1,20}\\{0,4}['\"](?:logprob|bytes|rank|id|top_|prob|score|decoded)", re.I
)
_BEARER = re.compile(
    rb"bearer(?:[ \t]token)?(?:[ \t]?[:=])?"
    + _BREAK
    + rb"{1,16}\\{0,4}['\"]?(?P<value>[\w\-./+=~]{8,}+)",
    re.I,
)
_NETRC = re.compile(rb"(?:login|account)[ \t\n]{1,8}\S{1,40}[ \t\n]{1,8}$")
_NETRC_PASSWORD = re.compile(rb"[ \t\n]{1,8}(?P<value>\S++)")
_KEY_BLOCK = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]++|-(?!----END ))*(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)
_KEY_SIGN = b"-----BEGIN "
_BETWEEN = rb"(?:[ \t]|['\"],[ \t]{0,4}['\"])"
_GAP, _VALUE = rb"(?:[ \t=]|['\"],[ \t]{0,4}['\"]|['\"])", rb"(?P<value>(?![-\s])[^\s'\"]++)"
_PASSWORD_OPTION = re.compile(_BETWEEN + rb"-p" + _GAP + rb"{0,3}" + _VALUE)
# Programs, and where their command lines have secrets that no name announces.
_COMMANDS = {
    b"curl": re.compile(
        _BETWEEN
        + rb"(?:-[A-Za-z]{0,8}[uU]|--(?:proxy-)?user)"
        + _GAP
        + rb"{0,3}[^\s'\":]{1,100}+:(?P<value>[^\s'\"]++)"
    ),
    b"mysql": _PASSWORD_OPTION,
    b"mariadb": _PASSWORD_OPTION,
    b"mongo": _PASSWORD_OPTION,
    b"sshpass": _PASSWORD_OPTION,
    b"login": _PASSWORD_OPTION,
    b"redis-cli": re.compile(_BETWEEN + rb"-a" + _GAP + rb"{1,3}" + _VALUE),
    b"wandb": re.compile(rb"(?<![0-9A-Za-z])(?P<value>[0-9a-f]{40})(?![0-9A-Za-z])"),
}
_MAX_COMMAND = 500
_PASSPHRASE_SOURCE = re.compile(
    rb"pass(?:in|out)?" + _BETWEEN + rb"{1,3}['\"]?pass:(?P<value>[^\s'\"]++)"
)
_KEYWORDS = tuple(
    b"secret pass credential key token cookie auth bearer jwt _pwd _pat dsn webhook sig= signature=".split()
)
_CHUNK = 1 << 16
_URL_SIGN = b"://"
_MAX_URL = 2048
_NO_SPACE = re.compile(rb"[^\s'\"<>]*+")
_AUTHORITY = re.compile(rb"[^/?#]*+")
_HOST_AND_PORT = re.compile(rb"(?:localhost|\[[0-9a-f:]++\]|[\w-]++(?:\.[\w-]++)++):\d{1,5}")
_HOOK = re.compile(
    rb"(?:hooks\.[^/]{1,200}+/|[^/]{1,200}+/(?:[^/]{0,40}+/){0,3}?(?:[^/]{0,40}?webhooks?[^/]{0,20}/|bot(?=\d)))(?P<value>.++)",
    re.I | re.S,
)
_QUERY = re.compile(
    rb"[?&;][\w-]{0,40}?(?:token|sig|signature|key|secret|password|code|auth|credential)=(?P<value>[^&#]++)",
    re.I,
)
_QUERY_NAME = re.compile(
    rb"(?:token|sig|signature|key|secret|password|code|auth|credential)$", re.I
)
_QUERY_VALUE = re.compile(rb"[^&#\s'\"<>]++")
_NO_PASSWORD = (b"git", b"root", b"user")


class SecretScanner:
    """One scan of a text for secrets.

    Keywords are located chunk by chunk, so that the list of their positions stays small and a chunk
    without keywords costs next to nothing.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._lower = data.lower()
        self._url_end = 0
        self._run_end = 0
        self._searched: dict[bytes, int] = {}
        self._words: tuple[tuple[bytes, bytes, Callable[[int], Iterable[Span]]], ...] = (
            (data.translate(_RUN_TABLE), _RUN_SIGN, self._run),
            (data, _KEY_SIGN, self._key_block),
            *(
                (self._lower, word, self._bearer if word == b"bearer" else self._named)
                for word in _KEYWORDS
            ),
            *(
                (self._lower, program, functools.partial(self._command, program))
                for program in _COMMANDS
            ),
            (self._lower, _URL_SIGN, self._url),
        )

    def spans(self) -> Iterator[Span]:
        """Yield the spans that look like secrets, in order and without overlap."""
        end = 0
        for at, matcher in self._candidates():
            if at < end and matcher != self._run:  # a run may go on behind what was masked
                continue
            for start, stop in matcher(at):
                if start >= end and stop > start:
                    yield start, stop
                    end = stop

    def url_credentials(self) -> Iterator[Span]:
        """Yield the spans of passwords, tokens and webhook paths in URLs."""
        for at in occurrences(self._lower, _URL_SIGN):
            yield from self._url(at)

    def _candidates(self) -> Iterator[tuple[int, Callable[[int], Iterable[Span]]]]:
        """Yield, in order, the position of each keyword together with the matcher to try there."""
        count = len(self._words)
        matchers = [matcher for _, _, matcher in self._words]
        for start in range(0, len(self._data), _CHUNK):
            positions: list[
                int
            ] = []  # position * count + index of the word: one integer sorts fast
            for index, (text, word, _) in enumerate(self._words):
                limit = start + _CHUNK + len(word) - 1
                at = text.find(word, start, limit)
                while at >= 0:
                    positions.append(at * count + index)
                    at = text.find(word, at + len(word), limit)
            positions.sort()
            for position in positions:
                yield position // count, matchers[position % count]

    def _run(self, at: int) -> Iterator[Span]:
        """Match tokens of well-known formats in the run of characters around ``at``.

        A run is searched once.
        """
        if at < self._run_end:
            return
        shape = self._words[0][0]
        end = shape.find(b" ", at)
        self._run_end = end = end if end >= 0 else len(shape)
        while token := _TOKEN.search(self._data, at, end):
            yield token.span()
            at = token.end()

    def _key_block(self, at: int) -> tuple[Span, ...]:
        """Match a private key in PEM."""
        block = _KEY_BLOCK.match(self._data, at)
        return (block.span(),) if block else ()

    def _command(self, program: bytes, at: int) -> Iterator[Span]:
        """Match passwords in the command line of ``program``, which is named at ``at``.

        A text is searched once for each kind of program.
        """
        if at < self._searched.get(program, 0):
            return
        line_end = self._data.find(b"\n", at, at + _MAX_COMMAND)
        self._searched[program] = end = line_end if line_end >= 0 else at + _MAX_COMMAND
        for secret in _COMMANDS[program].finditer(self._data, at, end):
            yield secret.span("value")

    def _bearer(self, at: int) -> tuple[Span, ...]:
        """Match the value after ``Bearer``, also on the next line, or after a name that contains
        this word."""
        bearer = _BEARER.match(self._data, at)
        if bearer and not begins_sentence(
            self._data[bearer.start("value") : bearer.end("value") + _MAX_NAME]
        ):
            return (bearer.span("value"),)
        return self._named(at)

    def _named(self, at: int) -> tuple[Span, ...]:
        """Match the value of a name that suggests a secret: name=value, "name":

        "value", --name value, a header.
        """
        data, lower = self._data, self._lower
        separator = _SEPARATOR.match(lower, at)
        separated = separator is not None
        window = lower[at - _MAX_NAME : at] if at > _MAX_NAME else lower[:at]
        start = at - len(window) + len(window.rstrip(_IDENTIFIER))
        if separator is None and lower.startswith(b"--", start):
            separator = _AFTER_OPTION.match(lower, at)
        if separator is None:
            return self._after_login(at, window)
        name = data[start : separator.end("tail")]
        sign = separator["sign"] if separated else b""
        if sign == b"=" and data[start - 1 : start] in (b"?", b"&") and _QUERY_NAME.search(name):
            parameter = _QUERY_VALUE.match(data, separator.end())
            return (parameter.span(),) if parameter else ()
        kind = _kind_of_name(name)
        if kind is None or self._is_phrase(start, separator):
            return ()
        starts_line = (
            start == 0
            or data[start - 1 : start] == b"\n"
            or data[max(0, start - 7) : start] == b"export "
        )
        to_line_end = kind == "cookie" or (separated and starts_line and sign == b"=")
        quoted = _OPENING.match(data, separator.end()) is not None
        if (
            not quoted
            and sign != b"="
            and not (kind == "header" and _SCHEME.match(data, separator.end()))
            and is_sentence(
                data[separator.end() : separator.end() + _MAX_SENTENCE], name if sign else b"pass"
            )
        ):
            return ()
        begin, end = _value(data, separator.end(), kind in ("header", "cookie"), to_line_end)
        if kind == "weak":
            named_in_quotes = data[separator.end("tail") : separator.end("tail") + 1] in (
                b"'",
                b'"',
                b"\\",
            )
            at_least = 8 if quoted and (named_in_quotes or sign == b"=") else 20
            if not looks_random(
                data[begin:end] if end - begin < _MAX_URL else b"", at_least=at_least
            ) or _LOGPROB.match(data, end):
                return ()
        value = data[begin : min(end, begin + _MAX_NAME)]
        if not quoted and is_code(value, name):
            return ()
        text = value.decode("utf-8", "replace")
        is_count = NUMBER.fullmatch(text) and COUNT_NAME.search(name.decode("ascii", "replace"))
        return () if is_count or SWITCH.fullmatch(text) else ((begin, end),)

    def _is_phrase(self, start: int, separator: re.Match[bytes]) -> bool:
        """Return whether the name from ``start`` on is part of a path, of a test's name or of a
        quoted phrase, as in '-r /etc/passwd': allowed is."""
        before = self._data[max(0, start - 1) : start]
        if (
            separator.re is not _SEPARATOR
            or separator["sign"] != b":"
            or before not in (b"/", b":", b" ", b"\t")
        ):
            return False
        if before == b":":
            return self._data[max(0, start - 2) : start] == b"::"
        if before == b"/":
            return self._data[max(0, start - 2) : start - 1].strip() != b""
        closing = self._data[separator.end("tail") : separator.end("tail") + 1] in (
            b"'",
            b'"',
            b"\\",
        )
        return closing and _OPENING.match(self._data, separator.end()) is None

    def _after_login(self, at: int, before: bytes) -> tuple[Span, ...]:
        """Match a password that follows the login with nothing but blanks, as in netrc, or
        ``pass:`` of OpenSSL."""
        if source := _PASSPHRASE_SOURCE.match(self._data, at):
            return (source.span("value"),)
        word = self._lower[at : at + 8]
        if word != b"password" or not _NETRC.search(before):
            return ()
        password = _NETRC_PASSWORD.match(self._data, at + len(word))
        return (password.span("value"),) if password else ()

    def _url(self, at: int) -> Iterator[Span]:
        """Match the credentials of the URL whose ``://`` is at ``at``."""
        begin = at + len(_URL_SIGN)
        if self._url_end < begin:  # nested URLs share one end, which is searched only once
            run = _NO_SPACE.match(self._data, begin)
            self._url_end = run.end() if run else begin
        rest = self._data[begin : min(self._url_end, begin + _MAX_URL)]
        last = rest.rfind(b"@")
        if last < 0:
            own = self._lower[begin : begin + len(rest.partition(_URL_SIGN)[0])]
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
            if user not in _NO_PASSWORD and not self._lower[max(0, at - 5) : at].endswith(
                (b"ssh", b"sftp")
            ):
                yield begin, begin + len(user)
            begin, rest = begin + len(user) + 1, rest[len(user) + 1 :]
        rest = rest.partition(_URL_SIGN)[0]  # a nested URL is matched by itself
        if hook := _HOOK.match(rest):
            yield begin + hook.start("value"), begin + len(rest)
            return
        for parameter in _QUERY.finditer(rest):
            yield begin + parameter.start("value"), begin + parameter.end("value")


@functools.lru_cache(maxsize=4096)
def _kind_of_name(name: bytes) -> Literal["name", "weak", "header", "cookie"] | None:
    """Return which kind of secret the name announces; None for none."""
    lower = name.lower()
    if _HEADER.fullmatch(lower):
        return "cookie" if _TO_LINE_END.fullmatch(lower) else "header"
    is_secret = _TEXT_NAME.fullmatch(lower) or (
        name.isupper() and is_secret_name(name.decode("ascii", "replace"))
    )
    if is_secret:
        return "name"
    return "weak" if _WEAK_NAME.fullmatch(lower) else None


def without_overlap(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans, sorted by their start, cut so that none overlaps the one before."""
    end = 0
    for start, stop in spans:
        start = max(start, end)
        if stop > start:
            yield start, stop
            end = stop


def occurrences(data: bytes, word: bytes) -> Iterator[int]:
    """Yield every position of ``word`` in ``data``."""
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + len(word))


def _value(data: bytes, at: int, header: bool, to_line_end: bool) -> Span:
    """Return the span of the value at ``at``: the text between its quotes, else up to the end of
    the word or line."""
    if quoted := _OPENING.match(data, at):
        mark, begin = quoted["mark"], quoted.end()
        end = _closing(data, begin, mark)
        return begin, end if end >= 0 else _end_of_line(data, begin)
    if header and (scheme := _SCHEME.match(data, at)):
        at = scheme.end()
    unquoted = (_LINE if to_line_end else _WORD).match(data, at)
    assert unquoted is not None
    end = unquoted.end()
    while to_line_end and end > at and data[end - 1 : end] in (b"'", b'"', b"\r"):
        end -= 1
    return at, end


def _closing(data: bytes, at: int, mark: bytes) -> int:
    """Return the position of the closing ``mark`` on the same line, or -1.

    A quote after a backslash does not close.
    """
    pattern = _CLOSING[mark[-1:]] if len(mark) == 1 else None
    if pattern is not None:
        quoted = pattern.match(data, at)
        return quoted.end() if quoted and data[quoted.end() : quoted.end() + 1] == mark else -1
    end = data.find(mark, at)
    return end if b"\n" not in data[at : max(at, end)] else -1


def _end_of_line(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return end if end >= 0 else len(data)


_CLOSING = {mark: re.compile(rb"(?:[^\\\n" + mark + rb"]++|\\[^\n])*+") for mark in (b"'", b'"')}
