"""What an engine, a probe or another machine prints cannot control the terminal that shows it, at
any place that shows it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_vllm_regress.cli.context import print_json
from pytest_vllm_regress.engines.processes.failures import RemoteFailure
from pytest_vllm_regress.plugin.protocol import _mask_report
from pytest_vllm_regress.runner.progress import OutputInOrder
from pytest_vllm_regress.util.logs import logging_to
from pytest_vllm_regress.util.text import printable, printable_output, split_output
from tests.hostile.test_texts import PRINTERS

ATTACKS = {
    "C0": "".join(map(chr, [*range(9), *range(11, 32), 127])),
    "C1": "".join(map(chr, range(0x80, 0xA0))),
    "link": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x07",
    "title": "\x1b]0;owned\x07",
    "device control": "\x1bP$q\x1b\\ \x90x\x9c",
    "clear": "\x1b[2J\x1b[H\x1b[1A\x1b[2K",
    "bidi": "abc\u202edef\u2066\u2069\u200f\u061c",
    "surrogate": "a\ud800b\udfff",
    "overwriting": "FAILED\rPASSED",
    "long": "x\x1b[31" * 20_000,
    "workflow command": "x\n::error file=a::owned\n  ::stop-commands::x\n##[error]owned\n::add-mask::a",
}
attacks = pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)


def is_harmless(output: str, *, colours: bool = False) -> bool:
    if colours:
        for part in ("\x1b[0m", "\x1b[32m", "\x1b[1;31m"):
            output = output.replace(part, "")
    steering = [letter for letter in output if not letter.isprintable() and letter not in "\n\t"]
    commands = [
        line for line in output.split("\n") if line.lstrip().startswith("::") or "##[" in line
    ]
    return not steering and not commands


def logged(text: str, capsys: pytest.CaptureFixture[str], file: Path) -> str:
    with logging_to(2, file, print):
        logging.getLogger("vllm_regress.engines").warning("the engine said %s", text)
    return capsys.readouterr().err + file.read_text()


@attacks
@pytest.mark.parametrize("printer", [name for name in PRINTERS if name not in ("page", "sarif")])
def test_reports_and_the_terminal(printer: str, text: str) -> None:
    output = PRINTERS[printer](text[:4000])
    assert is_harmless(output) and "\ud800" not in output


@attacks
def test_the_page_and_sarif_have_no_control_characters(text: str) -> None:
    for name in ("page", "sarif"):
        assert not [
            x for x in PRINTERS[name](text[:4000]) if not x.isprintable() and x not in "\n\t"
        ]


@attacks
def test_json_that_is_printed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({text: [text], "a": "#" + text})
    output = capsys.readouterr().out
    assert is_harmless(output)
    assert json.loads(output)["a"] == json.loads(json.dumps("#" + text))


@attacks
def test_the_log_of_the_command(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert is_harmless(logged(text, capsys, tmp_path / "log"))


@attacks
def test_the_log_that_pytest_shows(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vllm_regress"):
        logging.getLogger("vllm_regress.processes").info("%s password=hunter2", text)
    assert (
        is_harmless(caplog.text)
        and is_harmless(caplog.messages[0])
        and "hunter2" not in caplog.text
    )


@attacks
def test_captured_output_in_pytests_report(text: str) -> None:
    report = pytest.TestReport("x", ("x", 1, "x"), {}, "failed", text, "call")
    report.sections = [("Captured stdout call", f"\x1b[32mgreen\x1b[0m\tb {text}")]
    _mask_report(report)
    ((_, output),) = report.sections
    assert output.startswith("\x1b[32mgreen\x1b[0m\tb ") and is_harmless(output, colours=True)
    assert is_harmless(report.longreprtext)


def show_log(tmp_path: Path, content: bytes) -> str:
    class Files:
        def log(self, batch: object) -> Path:
            return tmp_path / "log"

    class Batch:
        key = ("x", 0)

    class Update:
        batch, last = Batch(), True

    (tmp_path / "log").write_bytes(content)
    out = io.StringIO()
    shown = OutputInOrder(lambda line: None, out)
    shown.begin([], [Batch()], Files())  # type: ignore[list-item, arg-type]
    shown.show(None)
    shown.show(Update())  # type: ignore[arg-type]
    return out.getvalue()


@attacks
def test_output_of_batches(text: str, tmp_path: Path) -> None:
    content = f"\x1b[1;31mE\x1b[0m\tx {text}".encode(errors="replace")
    output = show_log(tmp_path, content)
    assert output.startswith("\x1b[1;31mE\x1b[0m\tx ") and is_harmless(output, colours=True)


def test_output_of_batches_that_ordinary_tests_print_stays(tmp_path: Path) -> None:
    text = "\x1b[32m..\x1b[0m a.py::TestX::test_y\ttab ü →\n\n:: x\nC::f\n  std::cout << a::b\n: no"
    assert show_log(tmp_path, text.encode()) == text


@pytest.mark.parametrize(
    "text", [*ATTACKS.values(), "\x1b[32mab\x1b[0m\n", ":\n:", "a\r\nb", "x#", "##", "\x1b["]
)
def test_output_in_pieces_is_as_harmless(text: str) -> None:
    text = text[:2000]
    for size in (1, 2, 3, 7):
        unfinished, output = "", ""
        for at in range(0, len(text), size):
            ready, unfinished = split_output(unfinished + text[at : at + size])
            output += printable_output(ready)
        output += printable_output(unfinished)
        assert is_harmless(output, colours=True)


@pytest.mark.parametrize("escape", [printable, printable_output])
@pytest.mark.parametrize(
    "part",
    ["\n", " ", "\t", ":", "::a ", "#", "##[", "\x1b[", "\x1b[0m", "::a\n", "\r\n", "\x1b[0;"],
)
def test_escaping_takes_linear_time(part: str, escape: Callable[[str], str]) -> None:
    import time

    def seconds(size: int) -> float:
        began = time.process_time()
        escape("::" + part * (size // len(part)) + "::")
        return time.process_time() - began

    small, large = (min(seconds(size) for _ in range(5)) for size in (20_000, 160_000))
    assert large < 0.1 or large < 20 * small


def test_every_text_of_a_failed_reply_is_masked() -> None:
    secret = "password=hunter2"
    failure = RemoteFailure.decode(
        {
            "ok": False,
            "type": secret,
            "message": {"x": secret},
            "chain": [secret],
            "traceback": [secret],
            "claim": {"a": secret},
        }
    )
    assert "hunter2" not in repr(failure)
