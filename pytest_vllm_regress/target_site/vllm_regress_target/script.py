"""The wording of scripts: what a prompt tells the simulated model to say, as text between two tokens of the forged tokenizers.

Standard library only; both sides use it. The text is printable ASCII without spaces, so normalizers, chat templates and JSON leave it alone::

    Hi+%F0%9F%98%80$304;        bytes as themselves, "+" for a space, %XX for others, $N; for a token that is no byte
    $=%3Cthink%3E;              the token that each tokenizer calls so, whatever its number
    a`2:0.7;b0.3;c              a step with two possible tokens and their probabilities
    one|two~                    two choices of one request; "~": the second never ends by itself, but is said over and over
"""

import re
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union
from urllib.parse import quote, unquote

START = "<|script|>"
END = "<|end_script|>"
FAULTS_VARIABLE = "VLLM_REGRESS_SCRIPT_FAULTS"
"""Names the file in which workers note, a JSON object a line, what could not be said."""

Token = Union[int, str]
"""A token of the forged vocabulary by its number, of which 0 to 255 are the bytes; or a special token or marker by its text."""

Step = Tuple[Tuple[Token, float], ...]
"""The tokens that may be said at one place, with probabilities that add up to one; most often one token."""

_PLAIN = frozenset(range(0x21, 0x7F)) - set(b"%$`|~+<")
_TOKEN = re.compile(r"%([0-9A-F]{2})|\$([0-9]+);|\$=([^;]+);|(.)", re.DOTALL)
_COUNT = re.compile(r"`([0-9]+):")
_PROBABILITY = re.compile(r"([0-9.e-]+);")


class Answer(NamedTuple):
    """What one choice says. ``ends``: the end token follows the steps; else they are said over and over."""

    steps: Tuple[Step, ...]
    ends: bool = True

    def at(self, position: int, end: int) -> Step:
        """The step of the output's token number ``position`` (from zero), where ``end`` is the end token."""
        if position < len(self.steps):
            return self.steps[position]
        return ((end, 1.0),) if self.ends or not self.steps else self.steps[position % len(self.steps)]


def encode(answers: Iterable[Answer]) -> str:
    """The answers of a request's choices as the text that stands between the two tokens."""
    return "|".join("".join(map(_step, answer.steps)) + ("" if answer.ends else "~") for answer in answers)


def decode(text: str) -> Tuple[Answer, ...]:
    """What ``encode`` was given. Raises ``ValueError`` that says where the text is wrong."""
    answers: List[Answer] = []
    steps: List[Step] = []
    place = 0
    while place <= len(text):
        here = text[place : place + 1]
        if here == "`":
            step, place = _alternatives(text, place)
            steps.append(step)
        elif here in ("", "|", "~"):
            ends = here != "~"
            place += not ends
            if text[place : place + 1] not in ("", "|"):
                raise ValueError("nothing may follow '~' but '|', at {} of {!r}".format(place, text))
            answers.append(Answer(tuple(steps), ends))
            steps, place = [], place + 1
        else:
            token, place = _token(text, place)
            steps.append(((token, 1.0),))
    return tuple(answers)


def find(tokens: Sequence[int], start: int, end: int) -> Optional[Sequence[int]]:
    """The tokens of the last script of a prompt, or None where it has none. Raises ``ValueError`` where it is cut off."""
    if start not in tokens and end not in tokens:
        return None
    last = len(tokens) - 1 - list(reversed(tokens)).index(start) if start in tokens else None
    if last is None or end not in tokens[last:]:
        missing = START if last is None else END
        raise ValueError("the prompt was cut: its script has lost {}".format(missing))
    return tokens[last + 1 : tokens.index(end, last)]


def choice_of(request_id: str) -> int:
    """Which of the n choices of a request an engine's request is: V1 calls them 0_ID, 1_ID ..., V0 ID_parallel_sample_0 ..."""
    found = re.search(r"_parallel_sample_([0-9]+)$", request_id) or re.match(r"([0-9]+)_", request_id)
    return int(found.group(1)) if found else 0


def _step(step: Step) -> str:
    if len(step) == 1:
        return _spelled(step[0][0])
    return "`{}:".format(len(step)) + "".join("{!r};{}".format(share, _spelled(token)) for token, share in step)


def _spelled(token: Token) -> str:
    if isinstance(token, str):
        return "$={};".format(quote(token, safe=""))
    if token in _PLAIN:
        return chr(token)
    if token == 0x20:
        return "+"
    return "%{:02X}".format(token) if token < 256 else "${};".format(token)


def _token(text: str, place: int) -> Tuple[Token, int]:
    found = _TOKEN.match(text, place)
    if found is not None:
        byte, number, name, letter = found.groups()
        if name:
            return unquote(name, errors="strict"), found.end()
        if byte or number:
            return int(byte, 16) if byte else int(number), found.end()
        if letter == "+" or ord(letter) in _PLAIN:
            return 0x20 if letter == "+" else ord(letter), found.end()
    raise ValueError("no token at {} of {!r}".format(place, text))


def _alternatives(text: str, place: int) -> Tuple[Step, int]:
    count = _COUNT.match(text, place)
    if count is None:
        raise ValueError("no number of alternatives at {} of {!r}".format(place, text))
    place = count.end()
    step: List[Tuple[Token, float]] = []
    for _ in range(int(count.group(1))):
        share = _PROBABILITY.match(text, place)
        if share is None:
            raise ValueError("no probability at {} of {!r}".format(place, text))
        token, place = _token(text, share.end())
        step.append((token, float(share.group(1))))
    return tuple(step), place
