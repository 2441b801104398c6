"""Tracebacks in a log whose lines come from several processes: exception, frames, whether another
exception was its cause, and in which phase of an engine it happened.

Python's own form, and those of exception groups, IPython, pytest and Ray; also without their head,
without their end, without indentation, or wrapped at a width.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from .json_records import lines_in
from .prefixes import source_of, strip_prefix

HEAD = "Traceback (most recent call last)"
FRAME_LITERALS = (b'File "', b"(most recent call last)")
MAX_LINES = 400
MAX_FRAMES = 100
MAX_OPEN = 64
_MAX_MESSAGE = 2_000
_MAX_CODE = 300
_LINGER = 4
"""Lines after an exception in which Python says that another one followed from it."""
_MAX_CHAIN = 16
_MAX_STRANGE = 12
"""Lines in a traceback that are no part of it, after which it counts as cut."""
_FRAME = re.compile(
    r'[\s`]*File "?([^"]{1,1000}?)"?, line (\d+)(?:, in (\S.{0,200})|$|,|\s)'
    r"|\s*File ([^\s:]{1,1000}):(\d+), in (\S{1,200}?)\("
    r"|(?:Cell|Input) (In ?\[\d+\]), line (\d+)(?:, in (\S{1,200}?)\()?()()"
)
_HEADLESS = re.compile(r'[\s`]*File "[^"]{1,1000}", line \d+, in \S')
_WRAPPED = re.compile(
    r'\s*File "[^"]{0,300}$|\s*File "[^"]{1,300}"(?:,(?: l(?:i(?:n(?:e)?)?)?)?)?\s*$'
)
_CHAIN = re.compile(
    r"The above exception was the direct cause|During handling of the above exception"
)
_REFERS = re.compile(r"\babove\b|root cause")
_INSTALLED = re.compile(r".*[/\\][\w.]*-packages[/\\]")
_OF_VLLM = re.compile(r"(?:.*[/\\])?(vllm[/\\](?:.+[/\\])?[\w.-]+\.py)$")
"""The last folder called vllm: a checkout often lies in one of that name."""
_OF_PACKAGE = re.compile(r"(vllm[/\\](?:.+[/\\])?[\w.-]+\.py)$")
_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\([A-Za-z_]\w*\))?)(?:: ?|\s*$)")
_STRONG = re.compile(
    r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
    r"(?<!^)(?:Error|Exception|Exit|Interrupt|Failure|Group|NotFound|Died|Timeout|Failed|Warning)"
    r"(?:\([A-Za-z_]\w*\))?)(?:: ?|\s*$|(?= ?\())"
)
_CARETS = re.compile(r"[\s^~]+$")
_ENDS = ("`", "~~~", "Traceback", "### ", "[end of", "</", "Process ", "The above", "During ")
_INLINE = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)): (.*)$")
_PHASES = {"Application startup complete": "request", "Shutting down": "stop"}
PHASE_LITERALS = tuple(text.encode() for text in _PHASES)
"""Texts that select the lines where another phase begins."""
_LOOPS = frozenset({"run_busy_loop", "run_engine_loop"})
"""Functions of vLLM that run as long as the engine: an exception that leaves them ends it."""
_OF_REQUESTS = _LOOPS | {
    "step",
    "step_with_batch_queue",
    "add_request",
    "generate",
    "execute_model",
}
"""Functions of vLLM that run only once the engine is started."""


@dataclass(frozen=True)
class Frame:
    """One call: its file, its line, the function that it is in, and the code of the line if the
    traceback shows it."""

    file: str
    line: int
    function: str
    code: str = field(default="", compare=False)

    @property
    def of_vllm(self) -> str:
        """The file within vLLM, with slashes; empty for code of anything else."""
        if "vllm_regress" in self.file:
            return ""
        # Canonical after the last "-packages/": an environment may be called vllm.
        installed = _INSTALLED.match(self.file)
        end = installed.end() if installed else 0
        match = (_OF_PACKAGE if installed else _OF_VLLM).match(self.file, end)
        return match[1].replace("\\", "/") if match else ""

    @property
    def place(self) -> str:
        """The function, with the file within vLLM."""
        return f"{self.of_vllm}:{self.function}"

    @property
    def of_standard_library(self) -> bool:
        """Whether the file belongs to Python itself."""
        return (
            "site-packages" not in self.file
            and re.search(r"[/\\]python3?\.?\d*[/\\]", self.file, re.I) is not None
        )

    @property
    def of_program(self) -> bool:
        """Whether the file is user code: neither an installed package nor the standard library."""
        is_installed = "-packages" in self.file or self.of_standard_library
        return self.file.endswith(".py") and not is_installed


class FailureForm(enum.IntEnum):
    """How a failure stands in the log, the weakest evidence first."""

    HINT = 1
    """A text that a person calls the message of an error."""
    LOGGED = 2
    """A line at the level of errors that names no exception."""
    MENTIONED = 3
    """An exception with a message somewhere in a line."""
    LINE = 4
    """A line that begins with an exception or another form of error."""
    CUT = 5
    """A traceback whose exception is missing."""
    TRACEBACK = 6


@dataclass(eq=False)
class LoggedFailure:
    """An exception with its traceback, the innermost frame last.

    ``first`` and ``last`` are the numbers of its lines; ``code``: the innermost line of source
    code; ``cause``: the exception that led to it.
    """

    exception: str
    message: str
    frames: tuple[Frame, ...]
    first: int
    last: int
    follows: bool
    """Another exception caused it, or was being handled."""
    phase: str
    """The phase of an engine: import, start, request or stop."""
    form: FailureForm = FailureForm.TRACEBACK
    code: str = ""
    cause: LoggedFailure | None = None
    source: str = ""
    outermost: LoggedFailure | None = None
    """The last exception of its chain, if it is not that itself."""

    @property
    def name(self) -> str:
        """The exception's class without its module."""
        return self.exception.rpartition(".")[2]

    @property
    def text(self) -> str:
        """Exception and message; the innermost source code where there is no message."""
        words = self.message or self.code
        return f"{self.exception}: {words}" if self.exception and words else self.exception or words

    @property
    def refers(self) -> bool:
        """Whether the message only refers to another failure in the log."""
        return _REFERS.search(self.message) is not None

    @property
    def ends_engine(self) -> bool:
        """Whether an exception of its chain left the loop of a running engine, which then ends."""
        frames = (frame for other in self.outermost_chain() for frame in other.vllm_frames())
        return any(frame.function in _LOOPS for frame in frames)

    def chain(self) -> list[LoggedFailure]:
        """Return the exceptions that led to it and itself, the first one first."""
        failures: list[LoggedFailure] = [self]
        while failures[-1].cause is not None and len(failures) < MAX_OPEN:
            failures.append(failures[-1].cause)
        return failures[::-1]

    def outermost_chain(self) -> list[LoggedFailure]:
        """Return all exceptions of its chain, also those that followed from it."""
        return (self.outermost or self).chain()

    def ends(self) -> list[LoggedFailure]:
        """Return the first and the last exception of its chain: what caused it, and what it led
        to."""
        chain = self.outermost_chain()
        return list(dict.fromkeys((chain[0], chain[-1])))

    def vllm_frames(self) -> tuple[Frame, ...]:
        """Return the frames in vLLM."""
        return tuple(frame for frame in self.frames if frame.of_vllm)

    def is_of_another_program(self, packages: Iterable[str]) -> bool:
        """Return whether the traceback passes through other code, but not through vLLM or any of
        ``packages``.

        Other programs raise the same exceptions as vLLM. A traceback with standard-library frames
        only may still be vLLM's, for example that of a thread that writes to a pipe.
        """
        modules = {name.replace("-", separator) for name in packages for separator in ("_", "")}
        return not all(frame.of_standard_library for frame in self.frames) and not any(
            frame.of_vllm or modules.intersection(re.split(r"[/\\]", frame.file))
            for frame in self.frames
        )


@dataclass
class _Open:
    """A traceback whose exception has not been read yet.

    Forgotten when ``until`` lines have been read.
    """

    first: int
    until: int
    indent: int = 0
    cause: LoggedFailure | None = None
    outer: _Open | None = None
    """The traceback of another process that began before and has no exception yet."""
    frames: list[Frame] = field(default_factory=list)
    code: str = ""
    expects_code: bool = False
    wrapped: str = ""
    strange: int = 0
    last: int = 0

    def add_code(self, text: str) -> None:
        """Keep the code of the innermost call so far."""
        self.code, self.expects_code = text[:_MAX_CODE], False
        if self.frames:
            self.frames[-1] = replace(self.frames[-1], code=self.code)


@dataclass
class _Ended:
    """The last exception of a source: its message may go on, and another may follow from it."""

    failure: LoggedFailure
    until: int
    last: int
    chained: bool = False
    continues: bool = False


class TracebackReader:
    """Reads tracebacks line by line. Lines of different processes are kept apart by ``source``."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._ended: dict[str, _Ended] = {}
        self._count = 0
        self._phase = "start"

    def is_open(self) -> bool:
        """Return whether the next lines may belong to a traceback."""
        return any(s.until > self._count for s in self._open.values()) or any(
            s.until > self._count for s in self._ended.values()
        )

    def is_inside(self, source: str) -> bool:
        """Return whether a traceback of this source has no exception yet."""
        state = self._open.get(source)
        return state is not None and bool(state.frames) and state.until > self._count

    def unfinished(self) -> int | None:
        """Return the first line of a traceback of vLLM that is still open, or None."""
        for state in self._open.values():
            if state.until > self._count and any(frame.of_vllm for frame in state.frames):
                return state.first
        return None

    def cut(self) -> Iterator[LoggedFailure]:
        """Yield the tracebacks that are still open when the log ends."""
        for source, state in self._open.items():
            while state is not None:
                if state.frames:
                    yield self._cut(source, state)
                state = state.outer  # type: ignore[assignment]

    def is_foreign_frame(self, text: str) -> bool:
        """Return whether a line names a frame of anything but vLLM: alone it proves nothing."""
        match = _FRAME.match(text) if 'File "' in text else None
        return match is not None and not Frame(match[1] or "", 0, "").of_vllm

    def phase(self) -> str:
        """Return the phase of the engine that the lines so far show."""
        return self._phase

    def read(self, source: str, text: str, number: int) -> LoggedFailure | None:
        """Read a line; return the failure that it ends."""
        self._count += 1
        self._phase = next((phase for sign, phase in _PHASES.items() if sign in text), self._phase)
        if self._count % MAX_OPEN == 0:
            self._forget()
        if HEAD in text or "(most recent call last)" in text:
            return self._head(source, text, number)
        state = self._open.get(source)
        if state is None:
            self._continue(source, text, number)
            if not _HEADLESS.match(text) or len(self._open) >= MAX_OPEN:
                return None
            state = self._begin(source, number, 0)
            state.indent = max(0, len(text) - len(text.lstrip()) - 2)
        return self._inside(source, state, text, number)

    def _forget(self) -> None:
        now = self._count
        self._open = {name: state for name, state in self._open.items() if state.until > now}
        self._ended = {name: state for name, state in self._ended.items() if state.until > now}

    def _begin(self, source: str, number: int, indent: int) -> _Open:
        ended = self._ended.pop(source, None)
        cause = ended.failure if ended and ended.chained else None
        if cause is not None and len(chain := cause.chain()) > _MAX_CHAIN:
            chain[1].cause = None
        outer = self._open.get(source)
        if outer is not None and (not outer.frames or outer.outer is not None):
            cause = cause or outer.cause
            outer = outer.outer
        state = _Open(number, self._count + MAX_LINES, indent, cause, outer, last=number)
        self._open[source] = state
        return state

    def _head(self, source: str, text: str, number: int) -> LoggedFailure | None:
        if source not in self._open and len(self._open) >= MAX_OPEN:
            return None
        before, _, rest = text.partition("(most recent call last)")
        indent = (
            len(text) - len(text.lstrip()) if not before.replace("Traceback", "").strip() else 0
        )
        state = self._begin(source, number, indent)
        if 'File "' not in rest:
            return None
        for match in _FRAME.finditer(rest.replace(' File "', '\nFile "')):
            self._add_frame(state, match)
        found = _INLINE.search(rest)
        return self._end(source, state, found[1], found[2], number) if found else None

    def _continue(self, source: str, text: str, number: int) -> None:
        """Add the message that stands on the lines after the exception; note a chain."""
        ended = self._ended.get(source)
        if ended is None:
            return
        if _CHAIN.search(text):
            ended.chained, ended.until = True, self._count + MAX_OPEN
            return
        words = text.strip()
        ended.continues &= number <= ended.last + 1 and not words.startswith(_ENDS) and bool(words)
        if ended.continues:
            failure = ended.failure
            failure.message = f"{failure.message} {words}".strip()[:_MAX_MESSAGE]
            ended.last = number
            ended.continues = failure.message.endswith(":")

    def _inside(self, source: str, state: _Open, text: str, number: int) -> LoggedFailure | None:
        if state.wrapped:
            text, state.wrapped = state.wrapped + text.lstrip("> "), ""
        if match := _FRAME.match(text):
            self._add_frame(state, match)
            state.strange, state.last = 0, number
            return None
        if _WRAPPED.match(text) and len(text) < MAX_LINES * 2:
            state.wrapped = text.rstrip("\r\n")
            return None
        stripped = text.strip()
        if not stripped or _CARETS.match(text) or stripped.startswith("[..."):
            return None
        if stripped.startswith(_ENDS):
            return self._stop(source, state)
        return self._code_or_exception(source, state, text, number)

    def _code_or_exception(
        self, source: str, state: _Open, text: str, number: int
    ) -> LoggedFailure | None:
        stripped = text.strip()
        is_deeper = len(text) - len(text.lstrip()) > state.indent
        match = _STRONG.match(stripped)
        if is_deeper and (state.expects_code or not match or not state.frames):
            if state.expects_code:
                state.add_code(stripped)
            return None
        if match is None and (not state.expects_code or not is_deeper):
            match = _weak_class(stripped)
        if match is not None:
            return self._end(source, state, match[1], stripped[match.end() :].strip(), number)
        if state.expects_code:
            state.add_code(stripped)
            return None
        state.strange += 1
        return self._stop(source, state) if state.strange > _MAX_STRANGE else None

    def _add_frame(self, state: _Open, match: re.Match[str]) -> None:
        file, line, function = next(
            (match.groups("")[at : at + 3] for at in (0, 3, 6) if match[at + 1]), ("", "0", "")
        )
        if len(state.frames) < MAX_FRAMES:
            state.frames.append(Frame(file, int(line[:9] or 0), function.strip()))
        state.expects_code = True

    def _stop(self, source: str, state: _Open) -> LoggedFailure | None:
        """Close a traceback whose exception is missing."""
        self._close(source, state)
        return self._cut(source, state) if state.frames else None

    def _cut(self, source: str, state: _Open) -> LoggedFailure:
        frames = tuple(state.frames)
        return LoggedFailure(
            *("", "", frames, state.first, state.last, state.cause is not None),
            phase=self._phase_of("", frames),
            form=FailureForm.CUT,
            code=state.code,
            cause=state.cause,
            source=source,
        )

    def _close(self, source: str, state: _Open) -> None:
        if state.outer is not None:
            self._open[source] = state.outer
        else:
            self._open.pop(source, None)

    def _end(
        self, source: str, state: _Open, exception: str, message: str, number: int
    ) -> LoggedFailure:
        self._close(source, state)
        failure = LoggedFailure(
            exception,
            message[:_MAX_MESSAGE],
            tuple(state.frames),
            state.first,
            number,
            follows=state.cause is not None,
            phase=self._phase_of(exception, state.frames),
            form=FailureForm.TRACEBACK,
            code=state.code,
            cause=state.cause,
            source=source,
        )
        continues = not message or message.endswith(":") or " validation error" in message
        self._ended[source] = _Ended(failure, self._count + _LINGER, number, continues=continues)
        return failure

    def _phase_of(self, exception: str, frames: Iterable[Frame]) -> str:
        if self._phase != "start":
            return self._phase
        if exception.rpartition(".")[2] in ("ImportError", "ModuleNotFoundError"):
            return "import"
        functions = {frame.function for frame in frames if frame.of_vllm}
        return "start" if _OF_REQUESTS.isdisjoint(functions) else "request"


def _weak_class(text: str) -> re.Match[str] | None:
    """Match an exception whose name does not say that it is one, such as ``queue.Full``."""
    match = _CLASS.match(text)
    if match is None:
        return None
    is_class = match[1].rpartition(".")[2][:1].isupper() and not match[1].isupper()
    return match if is_class or ("." in match[1] and match[0].endswith(": ")) else None


def read_failures(text: str) -> list[LoggedFailure]:
    """Return the failures whose tracebacks ``text`` contains."""
    reader = TracebackReader()
    failures = []
    for number, raw in enumerate(text.splitlines(), 1):
        for line in lines_in(raw):
            prefix, rest = strip_prefix(line)
            failure = reader.read(source_of(prefix), rest, number)
            if failure is not None and failure.form is not FailureForm.CUT:
                failures.append(failure)
    return failures
