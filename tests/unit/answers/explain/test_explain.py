"""What `explain` says about a log: lines, certainty, versions, other failures; and logs that are
made to do harm."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import shlex
import threading
import tracemalloc
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.answers.explain import case_patterns
from pytest_vllm_regress.answers.explain import log as log_module
from pytest_vllm_regress.answers.explain.case_patterns import required_literals
from pytest_vllm_regress.answers.explain.explanation import Certainty
from pytest_vllm_regress.answers.explain.log_lines import BLOCK
from pytest_vllm_regress.answers.explain.prefixes import source_of, strip_prefix
from pytest_vllm_regress.cases.model import Case
from pytest_vllm_regress.util.patterns import PatternTooSlow
from tests.helpers.cases import CaseFile
from tests.unit.answers.explain.conftest import BANNER, DIED, TRACEBACK, certainty, explained

PROGRAM = """Traceback (most recent call last):
  File "{file}", line 7, in route
    route(request)
ValueError: the shared words
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/app/gateway.py", Certainty.POSSIBLE),
        ("/x/lib/python3.11/site-packages/vllm/v1/engine/core.py", Certainty.CERTAIN),
        ("/usr/lib/python3.11/multiprocessing/queues.py", Certainty.CERTAIN),
    ],
)
def test_an_exception_of_another_program_is_only_possible(
    file: str, expected: Certainty, tmp_path: Path
) -> None:
    case = CaseFile(
        kind="exception", phase="request", pattern="the shared words", omits="it"
    ).write(tmp_path)
    assert certainty(BANNER.format("0.8.4") + PROGRAM.format(file=file), case) is expected


def test_a_prompt_is_no_failure(tmp_path: Path) -> None:
    case = CaseFile(
        kind="exception", phase="request", pattern="ValueError: the shared words", omits="it"
    ).write(tmp_path)
    level = "INFO 11-22 02:28:08 [logger.py:39] "
    prompt = (
        f"{level}Received request cmpl-1: prompt: 'Why ValueError: the shared words?', params: x\n"
    )
    assert not explained(
        BANNER.format("0.8.4") + prompt + f"{level}it said ValueError: the shared words\n", case
    ).findings
    assert explained(
        BANNER.format("0.8.4")
        + prompt
        + "ERROR 11-22 02:28:09 [x.py:1] ValueError: the shared words\n",
        case,
    ).findings


def test_a_death_without_its_cause_and_a_traceback_without_its_end_are_said() -> None:
    """Regression: if these were the only failures in a log, none was reported."""
    refers = (
        TRACEBACK.format(n=1).rpartition("ValueError")[0]
        + "vllm.v1.engine.exceptions.EngineDeadError: See stack trace (above) for the root cause.\n"
    )
    (failure,) = explained(refers).unknown
    assert failure.signature.exception == "EngineDeadError"
    assert [
        group.signature.exception for group in explained(TRACEBACK.format(n=1) + refers).unknown
    ] == ["ValueError"]
    cut = TRACEBACK.format(n=1).rpartition("    raise")[0]
    assert explained("INFO: x\n" + cut).notes == (
        "the log ends inside the traceback that begins on line 2; its exception is missing",
    )
    assert explained(TRACEBACK.format(n=1)).notes == ()


def test_the_command_for_a_new_case_can_be_run(
    death: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a part of the pattern was masked as a secret, which made it an invalid regular
    expression."""
    message = "api_key: sk-aaaabbbbccccdddd rejected by /srv/x after 3 s"
    log = tmp_path / "log"
    log.write_text(
        BANNER.format("0.8.4")
        + TRACEBACK.format(n=1).rpartition("ValueError")[0]
        + f"ValueError: {message}\n"
    )
    assert cli.main(["--cases", str(death.directory.parent), "explain", str(log)]) == 5
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "new case:" in line)
    assert line.endswith("--affected '==0.8.4' --affected-env vllm-0.8.4")
    words = shlex.split(line)
    (pattern,) = (word[8:] for word in words if word.startswith("pattern="))
    assert re.search(pattern, f"ValueError: {message}") and "***" not in pattern


LOOP = """Traceback (most recent call last):
  File "/x/site-packages/vllm/v1/engine/core.py", line 1364, in {outermost}
    self._process_engine_step()
  File "/x/site-packages/vllm/v1/core/sched/scheduler.py", line 1021, in schedule
    raise RuntimeError("bad status")
RuntimeError: bad status
"""


@pytest.mark.parametrize(
    ("outermost", "kind"),
    [("run_busy_loop", "engine-death"), ("step_with_batch_queue", "exception")],
)
def test_the_command_for_a_new_case_knows_an_error_that_ends_the_engine(
    outermost: str, kind: str
) -> None:
    (failure,) = explained(BANNER.format("0.26.0") + LOOP.format(outermost=outermost)).unknown
    assert f" --kind {kind} --set phase=request " in failure.command()


def test_an_assertion_is_only_possible_unless_the_log_names_the_case(tmp_path: Path) -> None:
    case = CaseFile().write(tmp_path)
    failed = BANNER.format("0.8.4") + "E   AssertionError: expected 8, got 1\n"
    assert certainty(failed, case) is Certainty.POSSIBLE
    assert (
        certainty(f"{failed}FAILED cases/demo/test_demo.py::test - AssertionError\n", case)
        is Certainty.CERTAIN
    )
    assert explained("a server's log: expected 8, got 1\n", case).findings == ()


def test_cases_with_the_same_text_are_alternatives_unless_one_is_outside_its_range(
    tmp_path: Path,
) -> None:
    old, new = (
        CaseFile(id=name, kind="exception", pattern="is gone", affected=affected).write(tmp_path)
        for name, affected in (("old", "<0.8.5"), ("new", ">=0.8"))
    )
    findings = explained(BANNER.format("0.8.4") + DIED, old, new).findings
    assert [(finding.case.id, finding.alternatives, finding.certainty) for finding in findings] == [
        ("new", ("old",), Certainty.LIKELY),
        ("old", ("new",), Certainty.LIKELY),
    ]
    (finding,) = explained(BANNER.format("0.9.2") + DIED, old, new).findings
    assert (finding.case.id, finding.certainty) == ("new", Certainty.CERTAIN)


def test_other_failures_are_grouped_without_what_differs_between_runs() -> None:
    log = BANNER.format("0.8.4") + "".join(TRACEBACK.format(n=n) for n in range(3))
    (failure,) = explained(log).unknown
    assert (failure.count, failure.line, failure.signature.phase) == (3, 7, "request")
    assert failure.signature.frames == (
        "vllm/v1/core/sched/scheduler.py:schedule",
        "vllm/v1/engine/core.py:step",
    )
    assert failure.search_text == "ValueError no room for block of at"
    command = failure.command()
    assert command.startswith("vllm-regress new REPORT ")
    assert "somebody" not in command
    assert "--affected '==0.8.4' --affected-env vllm-0.8.4" in command
    pattern = re.search(r"--set 'pattern=([^']+)'", command)
    assert pattern is not None
    assert re.search(pattern[1], TRACEBACK.format(n=7))


def test_a_documented_failure_and_what_follows_from_it_are_no_other_failures(death: Case) -> None:
    consequence = TRACEBACK.format(n=1).replace(
        "ValueError: no room", "EngineDeadError: See stack trace above. no room"
    )
    caused = DIED.replace("RuntimeError", "ValueError") + TRACEBACK.format(n=1).replace(
        "no room for block", 'the queue of "a" is gone'
    )
    assert explained(consequence + caused, death).unknown == ()
    other = 'Traceback (most recent call last):\n  File "my.py", line 1, in f\nKeyError: 1\n'
    (failure,) = explained(other, death).unknown
    assert (failure.signature.exception, failure.signature.frames) == ("KeyError", ())


def test_an_exception_that_another_one_caused_is_not_counted_again() -> None:
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    log = (
        TRACEBACK.format(n=1)
        + chain
        + TRACEBACK.format(n=1).replace("ValueError: ", "RuntimeError: ")
    )
    assert [failure.signature.exception for failure in explained(log).unknown] == ["ValueError"]


def test_lines_of_two_processes_are_kept_apart() -> None:
    first = [f"(EngineCore_0 pid=1) {line}" for line in TRACEBACK.format(n=1).splitlines()]
    second = [
        f"(EngineCore_1 pid=2) {line}"
        for line in TRACEBACK.format(n=2).replace("ValueError: ", "KeyError: ").splitlines()
    ]
    log = "".join(f"{a}\nINFO:     a request\n{b}\n" for a, b in zip(first, second, strict=True))
    assert {failure.signature.exception for failure in explained(log).unknown} == {
        "ValueError",
        "KeyError",
    }


def test_a_traceback_in_a_record_of_json_is_read() -> None:
    record = json.dumps({"log": TRACEBACK.format(n=1)})
    assert [failure.signature.exception for failure in explained(f"{record}\n").unknown] == [
        "ValueError"
    ]


def test_an_exception_of_pythons_library_counts_only_where_it_was_recorded(tmp_path: Path) -> None:
    case = CaseFile(
        id="parsed", kind="exception", pattern="JSONDecodeError: Expecting value"
    ).write(tmp_path)
    of_python = '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n    raise\n'
    traceback = TRACEBACK.format(n=1).replace(
        "ValueError: ", of_python + "json.decoder.JSONDecodeError: Expecting value "
    )
    head = {
        "case_id": "parsed",
        "test": "t",
        "verdict": "REPRODUCED",
        "expected": True,
        "reason": "",
        "device": "sim",
        "environment": "e",
    }
    observation = {
        "kind": "exception",
        "phase": "probe",
        "summary": "",
        "parts": {"traceback": traceback},
        "at_work": [],
        "claim": "",
    }
    result = {**head, "observation": observation, "versions": {}, "started_at": 0, "duration_s": 0}
    document = {"schema": 2, "tool_version": "0", "problems": [], "results": [result]}
    (case.directory / "observations.json").write_text(json.dumps(document))
    assert [finding.case.id for finding in explained(traceback, case).findings] == ["parsed"]
    elsewhere = traceback.replace("scheduler.py", "another.py")
    other = explained(f"json.decoder.JSONDecodeError: Expecting value\n{elsewhere}", case)
    assert other.findings == ()
    assert [failure.signature.exception for failure in other.unknown] == ["JSONDecodeError"], (
        "it is not lost"
    )


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("expected \\d+ results, got [1-9]", (" results, got ",)),
        ("first one|second? choice", ("first one", " choice")),
        ("a(?:long literal text)?b", ()),
        ("^(?i)whatever", ()),
        ("x{3}yz.abc", ()),
        ("a\\.b\\(c\\)d", ("a.b(c)d",)),
        ("[^|]]literal", ("]literal",)),
    ],
)
def test_every_match_contains_a_required_literal(pattern: str, literals: tuple[str, ...]) -> None:
    assert required_literals(pattern) == literals


def test_prefixes_of_ci_systems_containers_and_vllm_are_removed() -> None:
    line = "2026-01-01T00:00:00.123Z web-1  | \x1b[31m(EngineCore_0 pid=12)\x1b[0m ERROR 11-23 17:35:54 [core.py:6] [rank0]: KeyError: 1"
    prefix, text = strip_prefix(line)
    assert text == "KeyError: 1"
    assert source_of(prefix) == source_of(
        strip_prefix(line.replace("17:35:54", "18:00:00").replace(".123Z", ".9Z"))[0]
    )


def test_a_log_larger_than_a_block_keeps_its_line_numbers_and_little_memory(death: Case) -> None:
    lines = BLOCK // 10
    log = ("x" * 30 + "\n").encode() * lines + DIED.encode()
    tracemalloc.start()
    try:
        (finding,) = explained(log, death).findings
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert finding.lines == (lines + 1,)
    assert peak < len(log) + 4 * BLOCK  # BytesIO may hold a copy


@pytest.mark.parametrize("before", [0, 5_000, 20_000, 3 * BLOCK])
def test_a_very_long_line_is_searched_around_the_text(before: int, death: Case) -> None:
    log = (
        b"first\n"
        + b"y" * before
        + DIED.encode().strip()
        + b"y" * 100_000
        + b"\nlast\n"
        + DIED.encode()
    )
    (finding,) = explained(log, death).findings
    assert finding.lines == (2, 4)


def test_bytes_that_are_not_text_are_read(death: Case) -> None:
    (finding,) = explained(b"\xff\xfe\x00\r\n\x80" + DIED.encode(), death).findings
    assert finding.lines == (2,)


def test_a_pattern_that_is_too_slow_is_named_and_not_searched_again(
    death: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def too_slow(pattern: str, text: str) -> None:
        calls.append(pattern)
        raise PatternTooSlow("too slow")

    monkeypatch.setattr(case_patterns, "search", too_slow)
    explanation = explained(DIED * 3, death)
    assert explanation.notes == ("death: not searched to the end: too slow",)
    assert len(calls) == 1


def test_searches_of_one_case_that_are_slow_together_end(
    death: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each search was allowed seconds, for any number of lines."""
    now = 0.0
    calls = []

    def slow(pattern: str, text: str) -> None:
        nonlocal now
        calls.append(text)
        now += 4.9

    monkeypatch.setattr(case_patterns, "search", slow)
    index = case_patterns.PatternIndex([death], clock=lambda: now)
    for _ in range(100):
        assert index.search(DIED) == []
    assert len(calls) == 3
    assert index.too_slow == {"death": "the searches for its pattern took more than 10 s together"}


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="no file whose beginning cannot be read"
)
def test_a_log_that_cannot_be_read_is_refused(
    death: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: an internal error."""
    assert cli.main(["--cases", str(death.directory.parent), "explain", "/proc/self/mem"]) == 2
    assert "/proc/self/mem: cannot be read" in capsys.readouterr().err


def test_the_command_masks_secrets_escapes_control_characters_and_ends_with_1(
    death: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(
        DIED
        + TRACEBACK.format(n=1).replace("no room", "no room \x1b]0;title\x07 password=hunter2000")
    )
    arguments = ["--cases", str(death.directory.parent), "explain", str(log)]
    assert cli.main(arguments) == 1
    output = capsys.readouterr().out
    assert "death: one result" in output
    assert "hunter2000" not in output
    assert "\x1b" not in output
    assert cli.main([*arguments, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [finding["lines"] for finding in document["findings"]] == [[1]]
    assert "hunter2000" not in json.dumps(document)


def test_the_command_ends_with_5_for_an_undocumented_failure_and_2_without_a_log(
    death: Case, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(TRACEBACK.format(n=1))
    arguments = ["--cases", str(death.directory.parent), "explain"]
    assert cli.main([*arguments, str(log)]) == 5
    log.write_text("INFO: fine\n")
    assert cli.main([*arguments, str(log)]) == 0
    assert cli.main([*arguments, "--about", "CUDA error: out of memory", str(log)]) == 5
    assert cli.main([*arguments, str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("plain", DIED.encode()),
        ("log.gz", gzip.compress(DIED.encode(), mtime=0)),
        ("log.bz2", bz2.compress(DIED.encode())),
        ("log.xz", lzma.compress(DIED.encode())),
        ("windows", DIED.encode("utf-16")),
    ],
)
def test_compressed_logs_and_those_of_windows_are_read(
    name: str, encoded: bytes, death: Case, tmp_path: Path
) -> None:
    log = tmp_path / name
    log.write_bytes(encoded)
    assert cli.main(["--cases", str(death.directory.parent), "explain", str(log)]) == 1


def test_logs_that_zstd_compressed_are_read_or_the_library_is_named(
    death: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zstd = log_module._zstd_library()
    packed = tmp_path / "log.zst"
    # Two frames, as tools write that compress in parallel.
    packed.write_bytes(zstd.compress(b"x\n" * 9) + zstd.compress(DIED.encode()))
    arguments = ["--cases", str(death.directory.parent), "explain", str(packed)]
    assert cli.main(arguments) == 1
    monkeypatch.setattr(log_module, "_zstd_library", lambda: None)
    assert cli.main(arguments) == 2
    assert "pip install 'pytest-vllm-regress[zstd]'" in capsys.readouterr().err


def test_a_pipe_is_read(death: Case, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(DIED,))
    writer.start()
    assert cli.main(["--cases", str(death.directory.parent), "explain", str(pipe)]) == 1
    writer.join()


def test_what_is_no_text_log_is_named(
    death: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--cases", str(death.directory.parent), "explain"]
    for name, content, status, words in (
        ("empty", b"", 0, "note: {} is empty"),
        ("log.zst", b"\x28\xb5\x2f\xfd....", 2, "{}: cannot be read: "),
        ("cut.gz", gzip.compress(DIED.encode() * 99, mtime=0)[:-20], 2, "{}: cannot be read: "),
        ("binary", DIED.encode() + b"\0\1", 2, "{}: is not text"),
    ):
        log = tmp_path / name
        log.write_bytes(content)
        assert cli.main([*arguments, str(log)]) == status
        assert words.format(log) in capsys.readouterr().err
    assert cli.main([*arguments, str(tmp_path)]) == 2
    assert "a folder. Give a log, or - for standard input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "log"),
    [
        (
            "Got fatal signal from worker processes",
            TRACEBACK.format(n=1) + "CRITICAL 11-23 17:35:54 [x.py:6] Got fatal signal from worker "
            "processes, shutting down. See stack trace above for root cause issue.\n",
        ),
        (
            'File "[^"]*default_worker\\.py", line',
            "Traceback (most recent call last):\n"
            '  File "/x/lib/python3.11/site-packages/ray/_private/workers/default_worker.py", line 3, in f\n'
            "ValueError: something else\n",
        ),
        ("no room for queues", TRACEBACK.format(n=1) + "RuntimeError: no room for queues\n"),
    ],
    ids=["a follow-up of any death", "a frame of Ray", "after another root cause"],
)
def test_what_follows_from_another_failure_is_not_the_documented_one(
    pattern: str, log: str, tmp_path: Path
) -> None:
    case = CaseFile(kind="engine-death", phase="request", pattern=pattern, omits="it").write(
        tmp_path
    )
    explanation = explained(BANNER.format("0.8.4") + log, case)
    assert explanation.findings == ()
    assert [failure.signature.exception for failure in explanation.unknown] == ["ValueError"]


def test_the_output_names_the_cause_what_to_do_and_what_follows(
    death: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(
        "INFO: x\nOSError: [Errno 98] Address already in use\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert cli.main(["--cases", str(death.directory.parent), "explain", str(log)]) == 5
    lines = capsys.readouterr().out.splitlines()
    assert "Cause: the port is already in use" in lines
    assert any(line.startswith("  why:         line 2: OSError") for line in lines)
    assert any("--port" in line for line in lines if line.startswith("  do: "))
    assert (
        "  line 3: RuntimeError: Engine core initialization failed. See root cause above." in lines
    )


FRAME = """ERROR 11-23 17:35:54 [api.py:1] Traceback (most recent call last):
ERROR 11-23 17:35:54 [api.py:1]   File "/x/site-packages/vllm/entrypoints/protocol.py", line 5, in check
ERROR 11-23 17:35:54 [api.py:1]     if data.get("stream"):
ERROR 11-23 17:35:54 [api.py:1]        ^^^^^^^^
ERROR 11-23 17:35:54 [api.py:1] AttributeError: 'list' object has no attribute 'get'
"""


@pytest.fixture
def printed(tmp_path: Path) -> Case:
    pattern = r"data\.get\(.*\n(?:.*\^\n)?.*AttributeError: |Value error, `n` must be positive"
    return CaseFile(symptom=f"[symptom.log]\npattern = {json.dumps(pattern)}").write(tmp_path)


@pytest.mark.parametrize(
    "log",
    [
        FRAME,
        "openai.BadRequestError: Error code: 400 - {'message': 'Value error, `n` must be positive'}",
        # Many lines of other processes, one of which looks like the beginning.
        "x = data.get(1)\n" * 45 + FRAME,
        "INFO 11-23 17:35:54 [api.py:1] rejected: Value error, `n` must be positive",
    ],
    ids=["frame", "client", "window", "info"],
)
def test_a_wrong_result_is_found_by_what_it_prints(log: str, printed: Case) -> None:
    assert certainty(BANNER.format("0.8.4") + log, printed) is Certainty.CERTAIN
    assert certainty(BANNER.format("0.9.0") + log, printed) is Certainty.OUTSIDE
    assert explained(log, printed).failures.root is None


def test_what_a_wrong_result_prints_is_searched_as_a_whole(printed: Case) -> None:
    assert explained(FRAME.replace("data.get", "items.get"), printed).findings == ()


def test_a_failure_that_a_documented_one_led_to_is_no_other_failure(tmp_path: Path) -> None:
    symptom = "[symptom.log]\npattern = 'must be larger than factor'"
    case = CaseFile(symptom=symptom).write(tmp_path)
    outer = TRACEBACK.format(n=1).replace("no room", "the processor failed, no room")
    chained = "\nThe above exception was the direct cause of the following exception:\n\n"
    inner = TRACEBACK.format(n=1).replace("no room", "1 must be larger than factor 28")
    explanation = explained(inner + chained + outer, case)
    assert [finding.case.id for finding in explanation.findings] == ["demo"]
    assert explanation.failures.root is None
