"""The first error in a log, as vLLM's processes, Python and argparse write it."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.engines.processes.logs import MAX_ERROR_CHARS, root_cause

TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1, in f\n    raise X\n"
SPAWNED = f"(EngineCore pid=7) {TRACEBACK}ValueError: no memory for the cache\n"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", ""),
        ("INFO: up\nWARNING 01-02 10:11:12 [a.py:1] cannot import x: ImportError: no x\n", ""),
        (f"{TRACEBACK}ValueError: wrong\n", "ValueError: wrong"),
        (f"{TRACEBACK}KeyError: 1\n{TRACEBACK}a.b_c.OwnError: second\nINFO: going down\n", "KeyError: 1"),
        (f"{TRACEBACK}a.b_c.OwnError: own\nThe above exception was the direct cause:\n{TRACEBACK}KeyError: 2\n", "a.b_c.OwnError: own"),
        (f"RuntimeError: see above\n{SPAWNED}", "ValueError: no memory for the cache"),
        (f"{TRACEBACK}torch.OutOfMemoryError\n", "torch.OutOfMemoryError"),
        ("(EngineCore_DP0 pid=31) ERROR 01-02 10:11:12 [core.py:700] ValueError: too long\n", "ValueError: too long"),
        ("\x1b[1;36m(Worker pid=3)\x1b[0;0m ERROR 01-02 10:11:12 [worker.py:9] RuntimeError: gone\n", "RuntimeError: gone"),
        ("[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: gone\n", "RuntimeError: gone"),
        (f"{SPAWNED}{TRACEBACK}RuntimeError: initialization failed. See root cause above.\n", "ValueError: no memory for the cache"),
        (f"{SPAWNED}Exception: a worker failed. See stack trace for root cause.\n", "ValueError: no memory for the cache"),
        ("RuntimeError: see above\n", "RuntimeError: see above"),
        (f"{TRACEBACK}x.ValidationError: 1 validation error for M\n  Value error, 4 heads\n    for further\n\nmore\n",
         "x.ValidationError: 1 validation error for M Value error, 4 heads for further"),
        ("usage: vllm serve [options]\nvllm serve: error: no such argument: --x\n", "vllm serve: error: no such argument: --x"),
        (f"ValueError: wrong\nException ignored in: <function f>\n{TRACEBACK}OSError: closed\n", "ValueError: wrong"),
        (f"Exception ignored in: <function f>\n{TRACEBACK}OSError: closed\nValueError: wrong\n", "ValueError: wrong"),
    ],
)  # fmt: skip
def test_the_root_cause_is_found(log: str, error: str) -> None:
    assert root_cause(log) == error


def test_the_root_cause_is_bounded() -> None:
    cause = root_cause("ValueError: " + "x" * 5000 + "\n" + "INFO: a frame of the parent\n" * 3000)
    assert cause.startswith("ValueError: ") and cause.endswith("xxx...")
    assert len(cause) == MAX_ERROR_CHARS + 3
