"""Logging of the command: levels, the log file, masking, and silence without the options."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pytest_vllm_regress import cli
from pytest_vllm_regress.util.logs import LOGGER, logging_to
from tests.helpers.cases import CaseFile

TOKEN = "hf_" + "a1B2c3D4e5" * 3
ENGINES = logging.getLogger("vllm_regress.engines")


@pytest.fixture
def cases(tmp_path: Path) -> str:
    return str(CaseFile().write(tmp_path / "cases").directory.parent)


def log_all_levels() -> None:
    ENGINES.debug("wait until ready, at most 180 s")
    ENGINES.info("start engine on sim")


@pytest.mark.parametrize(
    ("verbosity", "messages"),
    [
        (0, []),
        (1, ["start engine"]),
        (2, ["wait until ready", "start engine"]),
        (3, ["wait until ready", "start engine"]),
    ],
)
def test_verbosity_selects_what_is_logged_to_standard_error(
    verbosity: int, messages: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(verbosity, None, print):
        log_all_levels()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(messages)
    assert all(message in line for message, line in zip(messages, lines, strict=True))


def test_the_log_file_gets_all_levels_and_is_appended_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "regress.log"
    for _ in range(2):
        with logging_to(0, file, print):
            log_all_levels()
    assert file.read_text().count("DEBUG   vllm_regress.engines: wait until ready") == 2
    assert file.read_text().count("INFO    vllm_regress.engines: start engine on sim") == 2
    assert capsys.readouterr().err == ""


def test_secrets_and_control_characters_do_not_reach_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "regress.log"
    with logging_to(1, file, print):
        ENGINES.info("start with %s\x1b[2J", {"HF_TOKEN": TOKEN})
        try:
            raise ValueError(f"refused: {TOKEN}")
        except ValueError:
            ENGINES.exception("cannot start", stack_info=True)
    for text in (file.read_text(), capsys.readouterr().err):
        assert (
            "start with" in text
            and "ValueError: refused: ***" in text
            and "Stack (most recent call last)" in text
        )
        assert TOKEN not in text
        assert "\x1b" not in text


def test_handlers_and_level_are_restored(tmp_path: Path) -> None:
    before = (LOGGER.level, list(LOGGER.handlers))
    with pytest.raises(KeyError), logging_to(2, tmp_path / "regress.log", print):
        raise KeyError
    assert (LOGGER.level, LOGGER.handlers) == before


def test_global_options_of_the_command(
    cases: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "regress.log"
    assert cli.main(["-v", "--log-file", str(file), "--cases", cases, "list"]) == 0
    output = capsys.readouterr()
    assert f"--cases {cases} list" in output.err
    assert f"--cases {cases} list" in file.read_text()
    assert "demo" in output.out and "INFO" not in output.out
    assert cli.main(["-vv", "--cases", cases, "show", "demo"]) == 0
    assert "INFO" in capsys.readouterr().err


def test_nothing_is_logged_by_default(cases: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--cases", cases, "list"]) == 0
    assert capsys.readouterr().err == ""


def test_a_log_file_that_cannot_be_written_is_a_usage_error(
    cases: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--log-file", str(tmp_path / "none" / "x.log"), "--cases", cases, "list"]) == 2
    assert "none/x.log: No such file or directory" in capsys.readouterr().err


def test_a_log_on_a_full_disk_ends_with_one_warning(
    cases: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a traceback, and standard output was blamed."""
    assert cli.main(["-v", "--log-file", "/dev/full", "--cases", cases, "list"]) == 0
    output = capsys.readouterr()
    assert "demo" in output.out
    assert output.err.count("the log ends here: /dev/full: [Errno 28] No space left on device") == 1
    assert "Traceback" not in output.err and "INFO" in output.err


def test_the_help_documents_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--verbose" in text and "-vv" in text and "--log-file" in text


def test_pytest_sees_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vllm_regress"):
        log_all_levels()
    assert caplog.messages == ["start engine on sim"]
