"""The log of a process tree, as read while waiting for a documented hang."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pytest_vllm_regress.engines.processes import logs as logs_under_test
from pytest_vllm_regress.engines.processes.logs import LogFollower, LogWindow
from pytest_vllm_regress.target_site.vllm_regress_target.limits import trim


def test_text_matches_once_even_in_two_pieces(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("waiting for peers before\n")
    logs = LogFollower(log, None, r"waiting for \w+")
    logs.read()
    assert logs.matches == 0  # it was in the log before
    for piece, matches in (
        ("waiting f", 0),
        ("or others\nand more\n", 1),
        ("nothing\n", 1),
        ("waiting for é\n", 2),
    ):
        with log.open("a") as stream:
            stream.write(piece)
        logs.read()
        assert logs.matches == matches
    assert logs.excerpt == "waiting for others"


def test_the_excerpt_of_a_match_is_masked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logs = LogFollower(log, None, "waiting for .*")
    log.write_text("waiting for hf_" + "aB3" * 12 + "\n")
    logs.read()
    assert logs.excerpt == "waiting for ***"


def test_a_slow_pattern_does_not_delay_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_under_test, "_SEARCH_S", 0.2)
    log = tmp_path / "log"
    logs = LogFollower(log, None, "(?:x+x+)+y")
    began = time.monotonic()
    for _ in range(2):
        with log.open("a") as stream:
            stream.write("x" * 30_000)
        logs.read()
    assert logs.matches == 0 and time.monotonic() - began < 30


def test_a_repeated_line_of_a_raylet_is_not_progress(tmp_path: Path) -> None:
    ray = tmp_path / "session_2026" / "logs"
    ray.mkdir(parents=True)
    own, raylet = tmp_path / "own.log", ray / "raylet.err"
    logs = LogFollower(own, tmp_path, "nothing")

    def size_after(own_text: str, raylet_text: str) -> int:
        for path, text in ((own, own_text), (raylet, raylet_text)):
            with path.open("a") as stream:
                stream.write(text)
        logs.read()
        return logs.size

    full = "[2026-11-22 16:14:{}] is over 95% full, available space: {} GB\n"
    first = size_after("\x1b[33m(raylet)\x1b[0m " + full.format(43, 4.4), full.format(43, 4.4))
    assert first > 0
    assert (
        size_after("\x1b[33m(raylet)\x1b[0m " + full.format(54, 4.3), full.format(54, 4.3)) == first
    )
    assert size_after("", "a worker has died\n") > first
    before = size_after("step 1\n", "")
    assert (
        size_after("step 2\n", "") > before
    )  # the family's own words count, however like the last ones they are


def window_of(log: Path, *lines: str) -> LogWindow:
    """Return a window that begins behind these lines of a log."""
    log.write_text("".join(f"{line}\n" for line in lines))
    window = LogWindow(log)
    window.restart()
    return window


def add(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_a_window_has_what_was_logged_since_its_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    window = window_of(log, "before")
    add(log, "after")
    assert window.whole_text() == "after" and not window.missed


@pytest.mark.parametrize("burst", [0, 200])
def test_a_shortened_log_is_noticed_even_if_it_has_grown_again(tmp_path: Path, burst: int) -> None:
    log = tmp_path / "log"
    window = window_of(log, *(f"early line {n}" for n in range(100)))
    add(log, "the line that the test looks for", *(f"late line {n}" for n in range(100)))
    trim(str(log), 1000)
    add(log, *(f"burst {n}" for n in range(burst)))
    assert "looks for" not in window.whole_text()
    assert window.missed
    window.restart()
    add(log, "more")
    assert window.whole_text() == "more" and not window.missed


def test_a_log_that_was_shortened_inside_the_window_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    window = LogWindow(log)
    add(log, *(f"line {n}" for n in range(1000)))
    trim(str(log), 1000)
    window.whole_text()
    assert window.missed
