"""A scheduler for measurements of a server's states: its steps take time, and a request can make it
stuck."""

import threading
import time
from typing import Any

from ..dialect import worker_v1
from .pacing import STEP_S, STUCK, STUCK_TOKENS

Scheduler: Any = worker_v1.scheduler_class()


class PacedScheduler(Scheduler):  # type: ignore[misc,unused-ignore]
    """vLLM's scheduler, with a pause before each step, so that a stream surely runs when a signal
    arrives."""

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(request, "max_tokens", None) == STUCK_TOKENS:
            print(STUCK, flush=True)
            threading.Event().wait()
        return super().add_request(request, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(STEP_S)
        return super().schedule(*args, **kwargs)
