"""What a scripted request must be answered with, by the documentation of SamplingParams alone."""

from __future__ import annotations

from .engine_question import Request
from .side_answer import Choice, SideAnswer

_NEEDED = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "n",
        "stop",
        "include_stop_str_in_output",
        "stop_token_ids",
        "ignore_eos",
    }
)
_IRRELEVANT = frozenset(
    {"temperature", "seed", "logprobs", "prompt_logprobs", "skip_special_tokens"}
)


def expected(request: Request) -> SideAnswer | None:
    """Return the expected answer, without what the documentation leaves open (token ids,
    log-probabilities); None if it leaves more open."""
    if not request.said or not request.options.keys() <= _NEEDED | _IRRELEVANT:
        return None
    choices = []
    for number in range(request.options.get("n", 1)):
        said = request.said[number if len(request.said) > 1 else 0]
        choice = _choice(request, said)
        if choice is None:
            return None
        choices.append(choice)
    return SideAnswer(tuple(choices), tells_prompt=False)


def _choice(request: Request, said: str) -> Choice | None:
    """Return the expected choice; None if the text is not valid UTF-8 or contains a marker, so that
    it is not one token for each byte."""
    if "<" in said or any("\udc80" <= letter <= "\udcff" for letter in said):
        return None
    options = request.options
    stop = options.get("stop", ())
    tokens = said.encode()
    generated = bytearray()
    for position in range(options["max_tokens"]):
        if request.ends and position >= len(tokens):
            if options.get("ignore_eos") or options.get("skip_special_tokens") is False:
                return None  # how the end token is shown, is not documented
            return Choice(_text(generated), "stop", None)
        token = tokens[position % len(tokens)]
        generated.append(token)
        if len(generated) <= options.get("min_tokens", 0):
            continue
        if len(_stopped(generated, stop)) > 1:
            return None  # which of several stop strings counts, is not documented
        if token in options.get("stop_token_ids", ()):
            shown = generated if options.get("include_stop_str_in_output") else generated[:-1]
            return None if _stopped(generated, stop) else Choice(_text(shown), "stop", token)
        if stop:
            ended = _at_stop(request, generated)
            if ended is not None:
                return ended
    return Choice(_text(generated), "length", None)


def _at_stop(request: Request, generated: bytearray) -> Choice | None:
    """Return the choice that a stop string ends."""
    text = _text(generated)
    stopped = _stopped(generated, request.options["stop"])
    if not stopped:
        return None
    ((start, string),) = stopped
    end = start + len(string) if request.options.get("include_stop_str_in_output") else start
    return Choice(text[:end], "stop", string)


def _stopped(generated: bytearray, stop: object) -> list[tuple[int, str]]:
    """Return the stop strings that the last token completes, with their beginnings."""
    assert isinstance(stop, (list, tuple))
    text = _text(generated)
    if text == _text(generated[:-1]):  # the token only begins a character
        return []
    return [(len(text) - len(string), string) for string in stop if text.endswith(string)]


def _text(generated: bytes | bytearray) -> str:
    """Return the complete characters."""
    for cut in range(4):
        try:
            return bytes(generated[: len(generated) - cut]).decode()
        except UnicodeDecodeError:
            continue
    return bytes(generated).decode(errors="replace")
