"""The text format of scripts. A script is part of a prompt, between two tokens of the forged
tokenizers, and says what the simulated model answers.

Both the controller and the target use this module. The text is printable ASCII without spaces, so
that normalizers, chat templates and JSON do not change it::

    Hi+%F0%9F%98%80$304;        bytes as they are, "+" for a space, %XX for other bytes, $N; for a
    token that is not a byte
    $=%3Cthink%3E;              the token with this text, whatever its number in each tokenizer
    a`2:0.7;b0.3;c              a step with two possible tokens and their probabilities
    one|two~                    two choices of one request; "~": the second repeats until something
    else ends it

A script is in the prompt because a prompt reaches the worker through every front, version and
parallel mode. Preemption, chunked prefill and
prefix caching cannot lose it: the worker finds it in the prompt's tokens, and its position is the
number of tokens since.

A request of a foreign client keeps its prompt. Its id, which a server takes from the header
X-Request-Id, names a file with the script in the same format (``request_id``).
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional, Union
from urllib.parse import quote, unquote

START = "<|script|>"
END = "<|end_script|>"
NOTES_VARIABLE = "VLLM_REGRESS_SCRIPT_NOTES"
"""Environment variable with the path of the file in which workers report scripts that could not be
followed, one JSON object per line."""

FOLDER_SUFFIX = ".scripts"
"""Added to the path of the notes: the folder with the scripts that ids of requests name."""
USED_SUFFIX = ".used"
"""Added to the name that a request's id has for its script: a file that a worker writes when it
begins to follow the script."""

Token = Union[int, str]
"""A token: its number in the forged vocabulary, in which 0 to 255 are the bytes, or the text of a
special token or marker."""

Step = tuple[tuple[Token, float], ...]
"""The possible tokens at one position, with probabilities that add up to one.

Usually a single token.
"""

_PLAIN = frozenset(range(0x21, 0x7F)) - set(b"%$`|~+<")
_TOKEN = re.compile(r"%([0-9A-F]{2})|\$([0-9]+);|\$=([^;]+);|(.)", re.DOTALL)
_COUNT = re.compile(r"`([0-9]+):")
_PROBABILITY = re.compile(r"([0-9.e-]+);")


class ScriptedAnswer(NamedTuple):
    """The script of one choice.

    ``ends``: the end token follows the steps; otherwise the steps repeat.
    """

    steps: tuple[Step, ...]
    ends: bool = True

    def at(self, position: int, end: int) -> Step:
        """Return the step of the output token number ``position``, counted from zero.

        ``end`` is the end token.
        """
        if position < len(self.steps):
            return self.steps[position]
        return (
            ((end, 1.0),) if self.ends or not self.steps else self.steps[position % len(self.steps)]
        )


def encode(answers: Iterable[ScriptedAnswer]) -> str:
    """Return the text between the two tokens for the answers of a request's choices."""
    return "|".join(
        "".join(map(_step, answer.steps)) + ("" if answer.ends else "~") for answer in answers
    )


def decode(text: str) -> tuple[ScriptedAnswer, ...]:
    """Return the answers that ``encode`` was called with.

    Raises ``ValueError`` with the position of the first mistake.
    """
    answers: list[ScriptedAnswer] = []
    steps: list[Step] = []
    place = 0
    while place <= len(text):
        character = text[place : place + 1]
        if character == "`":
            step, place = _alternatives(text, place)
            steps.append(step)
        elif character in ("", "|", "~"):
            ends = character != "~"
            place += not ends
            if text[place : place + 1] not in ("", "|"):
                raise ValueError(f"nothing may follow '~' but '|', at {place} of {text!r}")
            answers.append(ScriptedAnswer(tuple(steps), ends))
            steps, place = [], place + 1
        else:
            token, place = _token(text, place)
            steps.append(((token, 1.0),))
    return tuple(answers)


def find(tokens: Sequence[int], start: int, end: int) -> Optional[Sequence[int]]:
    """Return the tokens of the last script in a prompt, or None without one.

    Raises ``ValueError`` if the script was truncated.
    """
    if start not in tokens and end not in tokens:
        return None
    last = len(tokens) - 1 - list(reversed(tokens)).index(start) if start in tokens else None
    if last is None or end not in tokens[last:]:
        missing = START if last is None else END
        raise ValueError(f"the prompt was cut: its script has lost {missing}")
    return tokens[last + 1 : tokens.index(end, last)]


def file_name(text: str) -> str:
    """Return the name of the file with a script in the text format."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def request_id(text: str, number: int) -> str:
    """Return an id for a request that follows the script ``text``. ``number`` makes it unique."""
    return f"script-{file_name(text)}-{number}"


def named_in(request_id: str) -> Optional[tuple[str, str]]:
    """Return the file of the script that the id of a request names, and the part of the id that
    ``request_id`` made; None if it names none."""
    match = re.search(r"script-([0-9a-f]{16})-[0-9]+", request_id)
    return (match.group(1), match.group()) if match else None


def choice_of(request_id: str) -> int:
    """Return which of the n choices of a request this id belongs to.

    V1 names them 0_ID, 1_ID ..., V0 ID_parallel_sample_0 ...
    """
    match = re.search(r"_parallel_sample_([0-9]+)$", request_id) or re.match(
        r"([0-9]+)_", request_id
    )
    return int(match.group(1)) if match else 0


def _step(step: Step) -> str:
    if len(step) == 1:
        return _spelled(step[0][0])
    return f"`{len(step)}:" + "".join(f"{share!r};{_spelled(token)}" for token, share in step)


def _spelled(token: Token) -> str:
    if isinstance(token, str):
        return "$={};".format(quote(token, safe=""))
    if token in _PLAIN:
        return chr(token)
    if token == 0x20:
        return "+"
    return f"%{token:02X}" if token < 256 else f"${token};"


def _token(text: str, place: int) -> tuple[Token, int]:
    match = _TOKEN.match(text, place)
    if match is not None:
        byte, number, name, letter = match.groups()
        if name:
            return unquote(name, errors="strict"), match.end()
        if byte or number:
            return int(byte, 16) if byte else int(number), match.end()
        if letter == "+" or ord(letter) in _PLAIN:
            return 0x20 if letter == "+" else ord(letter), match.end()
    raise ValueError(f"no token at {place} of {text!r}")


def _alternatives(text: str, place: int) -> tuple[Step, int]:
    count = _COUNT.match(text, place)
    if count is None:
        raise ValueError(f"no number of alternatives at {place} of {text!r}")
    place = count.end()
    step: list[tuple[Token, float]] = []
    for _ in range(int(count.group(1))):
        share = _PROBABILITY.match(text, place)
        if share is None:
            raise ValueError(f"no probability at {place} of {text!r}")
        token, place = _token(text, share.end())
        step.append((token, float(share.group(1))))
    return tuple(step), place
