"""Lines of logs, a case that they show, and what `explain` says about a text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pytest_vllm_regress.answers.explain.explanation import Certainty, Explanation
from pytest_vllm_regress.answers.explain.log import explain
from pytest_vllm_regress.cases.model import Case
from tests.helpers.cases import CaseFile

BANNER = (
    "INFO 11-22 02:28:08 [core.py:58] Initializing a V1 LLM engine (v{}) with config: model='x'\n"
)
DIED = 'ERROR 11-23 17:35:54 [core.py:634] RuntimeError: the queue of "a" is gone\n'
TRACEBACK = """Traceback (most recent call last):
  File "/x/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 26{n}, in step
    self.run()
  File "/x/lib/python3.11/site-packages/vllm/v1/core/sched/scheduler.py", line 5, in schedule
    raise ValueError
ValueError: no room for block {n} of /home/somebody/model at 0x7ff{n}
"""


@pytest.fixture
def death(tmp_path: Path) -> Case:
    text = CaseFile(
        id="death",
        kind="engine-death",
        phase="request",
        pattern='the queue of "\\w+" is gone',
        omits="it",
    )
    return text.write(tmp_path)


def explained(text: str | bytes, *cases: Case) -> Explanation:
    return explain(io.BytesIO(text if isinstance(text, bytes) else text.encode()), cases, "log")


def certainty(text: str, case: Case) -> Certainty:
    (finding,) = explained(text, case).findings
    return finding.certainty
