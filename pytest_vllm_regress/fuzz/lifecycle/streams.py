"""The streamed requests of a story: each gets a text of its own, ends once, and says nothing while
it must not run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...engines.inputs.script import Script
from ...engines.server import Server
from ...surveys.states.requests import COMPLETE, CUT, OPEN, Stream

REQUEST_S = 30.0
"""Time in which a request must begin or end while the server works."""
GONE_S = 8.0
"""Time in which a request must end once the engine behind it is gone."""
SETTLE_S = 0.3
"""Time in which tokens that were on their way when a rest began may arrive."""
QUIET_S = 0.5
"""Time afterwards in which none may arrive; ten steps of the engine."""
TOKENS = 24


@dataclass
class _Sent:
    """A streamed request.

    Attributes:
        text: the answer it must get.
        aborted: whether the story aborted it.
        interrupted: whether a sleep or a pause may have ended it or rejected it.
    """

    stream: Stream
    text: str
    aborted: bool = False
    interrupted: bool = False


class Streams:
    """The streams that a story has begun.

    ``note`` reports a problem: its kind, and what was seen.
    """

    def __init__(self, server: Server, note: Callable[[str, str], None]) -> None:
        self._server = server
        self._note = note
        self._sent: list[_Sent] = []
        self._numbers = itertools.count()

    def begin(self) -> None:
        """Begin a stream, and report a problem if its first token does not come in time."""
        sent = self._send()
        if not sent.stream.wait_for_first(REQUEST_S):
            self._sent.remove(sent)
            self._note("a stream does not begin", sent.stream.outcome(0))

    def _send(self) -> _Sent:
        text = f"answer {next(self._numbers)} of its own. "
        said = Script.text(text, end=False).prompt("Hello")
        stream = Stream(self._server, TOKENS, prompt=said, temperature=0)
        sent = _Sent(stream, (text * TOKENS)[:TOKENS])
        self._sent.append(sent)
        return sent

    def abort_one(self) -> None:
        """Abort the oldest stream that is not aborted."""
        for sent in self._sent:
            if not sent.aborted:
                sent.stream.abort()
                sent.aborted = True
                return

    def interrupt(self) -> None:
        """From now on, every stream may have been ended by a sleep or a pause."""
        for sent in self._sent:
            sent.interrupted = True

    def any_open(self) -> bool:
        """Return whether a stream has not ended."""
        return any(sent.stream.outcome(0) == OPEN for sent in self._sent)

    def tokens_at_rest(self) -> int:
        """Return the tokens that arrive while nothing may run, of all streams or of a new one."""
        sent = self._send()
        sent.interrupted = True
        time.sleep(SETTLE_S)
        before = self._received()
        time.sleep(QUIET_S)
        return max(self._received() - before, sent.stream.received)

    def _received(self) -> int:
        return sum(sent.stream.received for sent in self._sent)

    def expect_ends(self, when: str) -> None:
        """Every stream ends, with an error or cut, and what it said is its own."""
        for sent in self._sent:
            if sent.stream.outcome(GONE_S) == OPEN:
                self._note(f"a stream does not end {when}", f"within {GONE_S:g} s")
            self._check_text(sent)

    def expect_drained(self, when: str, cut: bool) -> None:
        """Every stream of a server that has ended was completed. ``cut``: any may be cut."""
        for sent in self._sent:
            ended = cut or sent.aborted or sent.interrupted
            if sent.stream.outcome(REQUEST_S) == CUT and not ended:
                self._note(
                    f"a stream is cut {when}", f"after {sent.stream.received} of {TOKENS} tokens"
                )
            self._check_text(sent)

    def finish(self) -> int:
        """Every stream ends, with all of its own text unless something ended it.

        Returns the number of complete ones, and forgets them.
        """
        complete = 0
        for sent in self._sent:
            outcome = sent.stream.outcome(REQUEST_S)
            complete += outcome == COMPLETE
            words = f"{sent.stream.received} of {TOKENS} tokens"
            if outcome == OPEN and sent.interrupted:
                self._note("a stream does not end after a sleep or a pause", words)
            elif outcome != COMPLETE and not (
                sent.interrupted or (sent.aborted and outcome == CUT)
            ):
                self._note(f"a stream is not complete: {outcome}", words)
            self._check_text(sent, is_whole=outcome == COMPLETE)
        self._sent = []
        return complete

    def _check_text(self, sent: _Sent, is_whole: bool = False) -> None:
        text = sent.stream.text
        if text != sent.text if is_whole else not sent.text.startswith(text):
            words = f"{text!r} instead of {sent.text!r}"
            self._note("a stream has another text than its own", words)
