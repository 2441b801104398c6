"""Tracebacks in a log whose lines come from several processes: exception, frames, whether another
exception was its cause, and in which phase of an engine it happened."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from .log_lines import source_of, strip_prefix

HEAD = "Traceback (most recent call last)"
MAX_LINES = 400
MAX_FRAMES = 100
MAX_OPEN = 64
_LINGER = 3
"""Lines after an exception in which Python says that another one followed from it."""
_FRAME = re.compile(r'\s*File "([^"]{1,1000})", line (\d+)(?:, in (\S{1,200}))?')
_CHAIN = re.compile(
    r"The above exception was the direct cause|During handling of the above exception"
)
_REFERS = re.compile(r"\babove\b|root cause")
_OF_VLLM = re.compile(r"(?:^|[/\\])(vllm[/\\](?:.+[/\\])?[\w.-]+\.py)$")
_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: |:$|$)")
_PHASES = {"Application startup complete": "request", "Shutting down": "stop"}
PHASE_LITERALS = tuple(text.encode() for text in _PHASES)
"""Texts that select the lines where another phase begins."""
_OF_REQUESTS = frozenset(
    {"step", "add_request", "generate", "run_busy_loop", "run_engine_loop", "execute_model"}
)
"""Functions of vLLM that run only once the engine is started."""


@dataclass(frozen=True)
class Frame:
    """One call: its file, its line and the function that it is in."""

    file: str
    line: int
    function: str

    @property
    def of_vllm(self) -> str:
        """The file within vLLM, with slashes; empty for code of anything else."""
        match = None if "vllm_regress" in self.file else _OF_VLLM.search(self.file)
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


@dataclass(frozen=True)
class LoggedFailure:
    """An exception with its traceback, the innermost frame last.

    ``first`` and ``last`` are the numbers of its lines.
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

    @property
    def name(self) -> str:
        """The exception's class without its module."""
        return self.exception.rpartition(".")[2]

    @property
    def refers(self) -> bool:
        """Whether the message only refers to another failure in the log."""
        return _REFERS.search(self.message) is not None

    def vllm_frames(self) -> tuple[Frame, ...]:
        """Return the frames in vLLM."""
        return tuple(frame for frame in self.frames if frame.of_vllm)

    def is_of_another_program(self, packages: Iterable[str]) -> bool:
        """Return whether the traceback passes through user code, but not through vLLM or any of
        ``packages``.

        Other programs raise the same exceptions as vLLM. A traceback with standard-library frames
        only may still be vLLM's, for example that of a thread that writes to a pipe.
        """
        modules = {name.replace("-", separator) for name in packages for separator in ("_", "")}
        return any(frame.of_program for frame in self.frames) and not any(
            frame.of_vllm or modules.intersection(re.split(r"[/\\]", frame.file))
            for frame in self.frames
        )


@dataclass
class _Open:
    """A traceback whose exception has not been read yet (``ended``: it has).

    Forgotten when ``until`` lines have been read.
    """

    first: int
    follows: bool
    until: int
    ended: bool = False
    frames: list[Frame] = field(default_factory=list)


class TracebackReader:
    """Reads tracebacks line by line. Lines of different processes are kept apart by ``source``."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._count = 0
        self._phase = "start"

    def is_open(self) -> bool:
        """Return whether the next lines may belong to a traceback."""
        if not any(state.until > self._count for state in self._open.values()):
            self._open.clear()
        return bool(self._open)

    def unfinished(self) -> int | None:
        """Return the first line of a traceback of vLLM that is still open, or None."""
        for state in self._open.values():
            is_live = not state.ended and state.until > self._count
            if is_live and any(frame.of_vllm for frame in state.frames):
                return state.first
        return None

    def read(self, source: str, text: str, number: int) -> LoggedFailure | None:
        """Read a line; return the failure that it ends."""
        self._count += 1
        self._phase = next((phase for sign, phase in _PHASES.items() if sign in text), self._phase)
        if self._count % MAX_OPEN == 0:
            self._open = {
                name: state for name, state in self._open.items() if state.until > self._count
            }
        state = self._open.get(source)
        if HEAD in text:
            if state is not None or len(self._open) < MAX_OPEN:
                follows = state is not None and state.follows
                self._open[source] = _Open(number, follows, self._count + MAX_LINES)
            return None
        if state is None:
            return None
        if state.ended:
            if _CHAIN.search(text):
                state.follows, state.until = True, self._count + MAX_OPEN
        elif match := _FRAME.match(text):
            if len(state.frames) < MAX_FRAMES:
                state.frames.append(Frame(match[1], int(match[2][:9]), match[3] or ""))
        elif text.strip() and not text[0].isspace() and not text.startswith("[..."):
            return self._end(source, state, text, number)
        return None

    def _end(self, source: str, state: _Open, text: str, number: int) -> LoggedFailure | None:
        del self._open[source]
        match = _CLASS.match(text)
        if match is None or match[1].isupper():
            return None
        self._open[source] = _Open(number, False, self._count + _LINGER, ended=True)
        return LoggedFailure(
            match[1],
            text[match.end() :].strip(),
            tuple(state.frames),
            state.first,
            number,
            state.follows,
            self._phase_of(match[1], state.frames),
        )

    def _phase_of(self, exception: str, frames: Iterable[Frame]) -> str:
        if self._phase != "start":
            return self._phase
        if exception.rpartition(".")[2] in ("ImportError", "ModuleNotFoundError"):
            return "import"
        functions = {frame.function for frame in frames if frame.of_vllm}
        return "start" if _OF_REQUESTS.isdisjoint(functions) else "request"


def read_failures(text: str) -> list[LoggedFailure]:
    """Return the failures whose tracebacks ``text`` contains."""
    reader = TracebackReader()
    lines = (strip_prefix(line) for line in text.splitlines())
    failures = (
        reader.read(source_of(prefix), rest, number)
        for number, (prefix, rest) in enumerate(lines, 1)
    )
    return [failure for failure in failures if failure is not None]
