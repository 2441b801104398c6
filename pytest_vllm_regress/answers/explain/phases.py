"""Determine the phase of an engine (start, ready, request, ...) at a line of its log."""

from __future__ import annotations

from .tracebacks import Failure

_BY_TEXT = {"Application startup complete": "request", "Shutting down": "stop"}
LITERALS = tuple(text.encode() for text in _BY_TEXT)
"""Texts that select the lines where another phase begins."""
_OF_REQUESTS = frozenset(
    {"step", "add_request", "generate", "run_busy_loop", "run_engine_loop", "execute_model"}
)
"""Functions of vLLM that run only once the engine is started."""


class PhaseReader:
    """Follows the phase. It begins with "start"."""

    def __init__(self) -> None:
        self.phase = "start"

    def read(self, text: str) -> None:
        """Note a line that begins another phase."""
        self.phase = next((phase for sign, phase in _BY_TEXT.items() if sign in text), self.phase)

    def phase_of(self, failure: Failure) -> str:
        """Return the phase of a failure that has just been read."""
        if self.phase != "start":
            return self.phase
        if failure.name in ("ImportError", "ModuleNotFoundError"):
            return "import"
        return (
            "request"
            if any(frame.function in _OF_REQUESTS for frame in failure.vllm_frames())
            else "start"
        )
