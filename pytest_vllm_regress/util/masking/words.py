"""Which names announce secrets, and which text behind them is no secret: sentences, code, numbers,
switches."""

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

_PASSWORD_NAME = re.compile(rb"pass|pwd|secret", re.I)
_SENTENCE = re.compile(
    rb"(?P<first>[A-Za-z]{1,15})(?:'t)?(?P<rest>(?:[ \t]+[A-Za-z'(]{1,15}[),.;:]?){0,5})(?![\w/@#$%^&*+=])"
)
# They begin sentences of error messages, and nobody's password is one of them.
_FIRST_WORDS = frozenset(
    b"a access after all allowed an and are as assertion at authentication authorization before both but by can cannot changed"
    b" check could credentials denied did do does either empty error every expected expired extra failed field file for found from"
    b" given got had has have header if ignored in incorrect input invalid is it its key keys login malformed may missing must"
    b" neither never no none not nothing of on only option or passed permission please prompt prompts provided refused rejected"
    b" required requires scheme set should some string terminal test that the there these they this to token tokens too type unable"
    b" unauthorized undefined unexpected unknown unset unsupported use used using validation value verification was were when which"
    b" while will with without wrong you your".split()
)
_SENTENCE_WORDS = frozenset(
    b"a an are be been cannot denied does expected failed found got has have invalid is missing must not required should the was were".split()
)
_CODE = re.compile(
    rb"(?:self|cls|os|sys|environ|request|\w*(?:config|args|settings|params|options|envs))[.\[].*|[A-Za-z_][A-Za-z_.]*\(.*"
    rb"|(?:str|int|bytes|bool|float|object|Any|Optional|Union|List|Dict|list|dict|SecretStr)(?:[\[|():].*)?",
    re.S,
)
_PLACEHOLDER = re.compile(
    rb"<[A-Za-z_ -]*+>?|\{[A-Za-z_.]*+\}?|\[[A-Z_]++\]|\$\{?[A-Z_]++\}?|\$[({].*|%\(?[a-z_]*\)?[srdq]|\*{2,}|[xX]{4,}|\.{3}",
    re.S,
)


def is_secret_name(name: str) -> bool:
    """Return whether the variable's name says that it holds a secret."""
    return name not in _NOT_SECRET and bool(_SECRET_NAME.search(name))


def is_maskable(name: str, value: str) -> bool:
    """Return whether a secret variable's value should be masked: not a switch, a count, or so short
    that masking would garble text."""
    if SWITCH.fullmatch(value) or len(value) < _MIN_LENGTH:
        return False
    return not (NUMBER.fullmatch(value) and COUNT_NAME.search(name))


def is_sentence(text: bytes, name: bytes) -> bool:
    """Return whether ``text`` begins with words of a sentence and not with a value of ``name``.

    People choose words as passwords, not as keys.
    """
    words = _SENTENCE.match(text)
    if words is None:
        return False
    if words["first"].lower() in _FIRST_WORDS:
        return True
    return not _PASSWORD_NAME.search(name) and not _SENTENCE_WORDS.isdisjoint(
        words["rest"].lower().split()
    )


def begins_sentence(text: bytes) -> bool:
    """Return whether the first word of ``text`` is one that sentences begin with."""
    words = _SENTENCE.match(text)
    return words is not None and words["first"].lower() in _FIRST_WORDS


def is_code(value: bytes, name: bytes) -> bool:
    """Return whether ``value``, which is not quoted, is an expression, a type, a placeholder or the
    name itself."""
    plain = value.rstrip(b")]}>.:")
    own = name.lstrip(b"-").replace(b"-", b"_").lower()
    return bool(
        _CODE.fullmatch(value)
        or _PLACEHOLDER.fullmatch(value)
        or _PLACEHOLDER.fullmatch(plain)
        or SWITCH.fullmatch(plain.decode("utf-8", "replace"))
        or plain.lower().replace(b"-", b"_") == own
        or value.startswith((own + b".", own + b"["))
    )


def looks_random(value: bytes, *, at_least: int) -> bool:
    """Return whether ``value`` may be a token: one word of ``at_least`` characters, with letters
    and digits or very long."""
    if len(value) < at_least or not _TOKEN.fullmatch(value):
        return False
    return len(value) >= 2 * at_least or bool(_DIGIT.search(value) and _LETTER.search(value))


_TOKEN = re.compile(rb"[A-Za-z0-9_+=~-][A-Za-z0-9_.~+/=:-]*+")
_DIGIT, _LETTER = re.compile(rb"[0-9]"), re.compile(rb"[A-Za-z]")
