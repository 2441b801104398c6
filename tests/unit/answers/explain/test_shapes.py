"""Logs in the shapes in which people paste them: each has one root cause, which is the answer."""

from __future__ import annotations

import json

import pytest

from tests.unit.answers.explain.conftest import explained

FILE = "/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_model_runner.py"
TRACEBACK = f"""Traceback (most recent call last):
  File "{FILE}", line 812, in execute_model
    hidden = self.model(tokens)
             ^^^^^^^^^^^^^^^^^^
  File "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1751, in _call_impl
    return forward_call(*args, **kwargs)
ZebraError: the stripes of layer 7 do not match
"""
CAUSE = "ZebraError: the stripes of layer 7 do not match"
DEAD = f"""Traceback (most recent call last):
  File "{FILE.replace("worker/gpu_model_runner", "engine/async_llm")}", line 8, in generate
    raise EngineDeadError()
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""
RAY = f"""ray.exceptions.RayTaskError(ZebraError): ray::RayWorkerWrapper.execute_method() (pid=12, ip=10.0.0.2)
  File "{FILE}", line 812, in execute_model
    hidden = self.model(tokens)
{CAUSE}
"""
GROUP = f"""  + Exception Group Traceback (most recent call last):
  |   File "/opt/venv/lib/python3.12/site-packages/starlette/_utils.py", line 77, in collapse
  |     yield
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "{FILE}", line 812, in execute_model
    |     hidden = self.model(tokens)
    | {CAUSE}
    +------------------------------------
"""
IPYTHON = f"""---------------------------------------------------------------------------
ZebraError                                Traceback (most recent call last)
Cell In[3], line 2
      1 llm = LLM("m")
----> 2 llm.generate("x")

File {FILE}:812, in execute_model(self, tokens)
    811 def execute_model(self, tokens):
--> 812     hidden = self.model(tokens)

{CAUSE}
"""
PYTEST = f"""    def test_stripes():
>       run()

test_stripes.py:4:
_ _ _ _ _ _ _ _ _ _ _
>       raise ZebraError("x")
E       {CAUSE}

{FILE}:812: ZebraError
=========================== short test summary info ============================
FAILED test_stripes.py::test_stripes
"""


def prefixed(prefix: str, text: str = TRACEBACK) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def records(field: str, text: str = TRACEBACK, **others: object) -> str:
    return "".join(json.dumps({**others, field: line}) + "\n" for line in text.splitlines())


def wrapped(text: str, width: int) -> str:
    return "".join(
        f"{line[at : at + width]}\n"
        for line in text.splitlines()
        for at in range(0, max(len(line), 1), width)
    )


def interleaved(first: str, second: str) -> str:
    pairs = zip(first.splitlines(), second.splitlines(), strict=False)
    return "".join(f"{a}\n{b}\n" for a, b in pairs)


SHAPES = {
    "docker json-file": records("log", stream="stderr", time="2026-01-01T00:00:00.1Z"),
    "one JSON record": json.dumps({"level": "error", "event": "died", "exception": TRACEBACK}),
    "CloudWatch": records("message", timestamp=1),
    "fluentd in kubernetes": json.dumps({"kubernetes": {"pod": "x"}, "log": TRACEBACK}),
    "structlog": json.dumps({"event": "x", "level": "error", "exc_info": TRACEBACK}),
    "journald": prefixed("Jan 02 03:04:05 node-7 vllm[4242]: "),
    "syslog with colours": prefixed(
        "Jan  2 03:04:05 node7 app[9]: #033[1;36m(EngineCore pid=3)#033[0;0m "
    ),
    "CRI": prefixed("2026-01-02T03:04:05.678901234Z stderr F "),
    "stern": prefixed("vllm-7d9f8b6c5-x2x4z vllm "),
    "compose": prefixed("engine-1  | "),
    "Buildkite": prefixed("[2026-01-02T03:04:05Z] "),
    "GitHub Actions": prefixed("2026-01-02T03:04:05.6789012Z "),
    "Ray": prefixed("\x1b[36m(RayWorkerWrapper pid=12, ip=10.0.0.2)\x1b[0m "),
    "Ray's data workers": prefixed("(MapWorker(MapBatches(vLLMEngineStage)) pid=12, ip=10.0.0.2) "),
    "Ray, repeated": prefixed("(RayWorkerWrapper pid=12) ").replace(
        "match\n", "match [repeated 7x across cluster]\n"
    ),
    "an error of GitHub Actions": prefixed("2026-01-02T03:04:05.6789012Z ##[error]"),
    "k9s": prefixed("vllm-0 \u2502 "),
    "announced in prose": f"I get the following error:\n\n{CAUSE.partition(': ')[2]}\n",
    "logging": prefixed("2026-01-02 03:04:05,678 - vllm.engine - ERROR - "),
    "loguru": prefixed("2026-01-02 03:04:05.678 | ERROR    | vllm.engine:run:12 - "),
    "vLLM": prefixed("(EngineCore_0 pid=3) ERROR 01-02 03:04:05 [core.py:6] "),
    "RunPod": prefixed("j6zswihe185nfq[error]"),
    "quoted": prefixed("> "),
    "quoted twice": prefixed("> > "),
    "a code fence": f"It fails:\n```text\n{TRACEBACK}```\nWhy?\n",
    "details and entities": "<details>\n<pre>"
    + TRACEBACK.replace('"', "&quot;").replace("<", "&lt;")
    + "</pre>\n</details>\n",
    "colours as text": prefixed("\\x1b[31m", TRACEBACK),
    "colours without their escape": prefixed("[0;36m(Worker pid=7)[0;0m "),
    "a progress bar before the head": f"Loading: 40%|####  | 2/5 [00:01<00:02,  1.2it/s]{TRACEBACK}",
    "no indentation": "".join(f"{line.lstrip()}\n" for line in TRACEBACK.splitlines()),
    "non-breaking spaces": TRACEBACK.replace("  ", "\u00a0\u00a0"),
    "wrapped": wrapped(TRACEBACK, 80),
    "escaped ends of lines": "ERROR: worker died: " + TRACEBACK.replace("\n", "\\n"),
    "exception group": GROUP,
    "RayTaskError": RAY,
    "IPython": IPYTHON,
    "pytest": PYTEST,
    "no head": TRACEBACK.partition("\n")[2],
    "followed by a dead engine": TRACEBACK + DEAD,
    "after a line that announces it": "ERROR 01-02 03:04:05 [x.py:1] EngineCore failed to start.\n"
    + TRACEBACK
    + "RuntimeError: Engine core initialization failed. See root cause above.\n",
    "a worker that reports it": f"RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause\n{TRACEBACK}",
    "only a line": f"{CAUSE}\n",
    "a line in prose": f"The server says `{CAUSE}` and ends.\n",
    "Windows": TRACEBACK.replace("\n", "\r\n"),
    "the message on the next line": TRACEBACK.replace("ZebraError: ", "ZebraError:\n  "),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_root_cause_is_the_only_answer(shape: str) -> None:
    explanation = explained(SHAPES[shape])
    shown = [failure.title for failure in explanation.unknown]
    expected = CAUSE.partition(": ")[2] if shape == "announced in prose" else CAUSE
    assert [title.replace("  ", " ") for title in shown] == [expected]


def test_two_processes_without_a_prefix_are_taken_apart() -> None:
    other = TRACEBACK.replace("layer 7", "layer 8").replace("ZebraError", "HorseError")
    titles = {failure.title for failure in explained(interleaved(TRACEBACK, other)).unknown}
    assert CAUSE in titles


def test_both_ends_of_a_chain_are_shown() -> None:
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    outer = TRACEBACK.replace("ZebraError: the stripes of layer 7 do not match", "OSError: no zoo")
    (failure,) = explained(TRACEBACK + chain + outer).unknown
    assert [failure.title, *(text for _, text in failure.chain)] == [CAUSE, "OSError: no zoo"]


def test_an_empty_message_is_replaced_by_the_code() -> None:
    text = TRACEBACK.replace(CAUSE, "AssertionError").replace(
        "return forward_call(*args, **kwargs)", "assert stripes == 8"
    )
    (failure,) = explained(text).unknown
    assert failure.title == "AssertionError: assert stripes == 8"


def test_a_traceback_without_its_end_is_said_with_its_code() -> None:
    explanation = explained(TRACEBACK.rpartition("ZebraError")[0] + "```\nWhat is this?\n")
    (failure,) = explanation.unknown
    assert "the traceback that begins on line 1 has no exception" in explanation.notes[0]
    assert failure.signature.frames == ("vllm/v1/worker/gpu_model_runner.py:execute_model",)
    assert failure.message == "return forward_call(*args, **kwargs)"


def test_only_what_follows_is_no_cause() -> None:
    explanation = explained(DEAD)
    assert explanation.only_follow_up is not None
    assert "EngineCore" in explanation.only_follow_up.look
    assert explained(TRACEBACK + DEAD).only_follow_up is None


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: the zoo is closed",
        "vllm: error: unrecognized arguments: --stripes 7",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
        "CUDA error: an illegal memory access was encountered",
        "exec /usr/bin/vllm: exec format error",
        "ModuleNotFoundError: No module named 'zebra'",
        "container engine exited with code 137",
        "Segmentation fault (core dumped)",
        "src/x.cu:3:10: fatal error: zebra.h: No such file or directory",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "[rank0]:[E102 03:04:05.1 ProcessGroupNCCL.cpp:6] Watchdog caught collective operation timeout",
    ],
)
def test_a_line_without_a_traceback_is_a_failure(line: str) -> None:
    explanation = explained(f"INFO 01-02 03:04:05 [x.py:1] starting\n{line}\nINFO: fine\n")
    assert explanation.unknown


@pytest.mark.parametrize(
    "text",
    [
        "INFO 01-02 03:04:05 [x.py:1] The model wrote: ValueError: the zoo is closed\n",
        "WARNING 01-02 03:04:05 [x.py:1] Failed to import from vllm._C with ImportError('x')\n",
        json.dumps({"level": "info", "prompt": "Why ValueError: the zoo?", "msg": "request"})
        + "\n",
        json.dumps({"role": "assistant", "content": "Traceback (most recent call last):"}) + "\n",
        "How do I handle errors? Exceptions are not documented.\n",
    ],
)
def test_healthy_lines_and_what_a_model_wrote_are_no_failures(text: str) -> None:
    explanation = explained(text)
    assert (explanation.findings, explanation.unknown) == ((), ())


def test_an_environment_called_vllm_does_not_make_torch_a_part_of_vllm() -> None:
    text = TRACEBACK.replace(FILE, "/envs/vllm/bin/run").replace("/opt/venv/", "/envs/vllm/")
    (failure,) = explained(text).unknown
    assert failure.signature.frames == ()


def test_a_checkout_in_a_folder_called_vllm_has_the_paths_of_the_package() -> None:
    place = "/home/vllm/me/vllm/vllm/v1/worker/gpu_model_runner.py"
    (failure,) = explained(TRACEBACK.replace(FILE, place)).unknown
    assert failure.signature.frames == ("vllm/v1/worker/gpu_model_runner.py:execute_model",)


def test_carets_that_are_logged_as_an_error_are_no_failure() -> None:
    assert explained("ERROR 07-08 15:41:43 [core.py:1]     ^^^^^^^^^^^^\n").unknown == ()
