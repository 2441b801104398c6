"""``--results`` and other outputs on a disk that is full or cannot be written."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.cases.results import RunResult, TestResult, read_results
from pytest_vllm_regress.cases.verdict import Verdict
from pytest_vllm_regress.cli import main
from pytest_vllm_regress.errors import UsageError
from pytest_vllm_regress.runner import run
from pytest_vllm_regress.runner.run import check_destination, save_results
from pytest_vllm_regress.util.files import check_writable, write_atomically
from tests.helpers.cases import CaseFile

RUN = RunResult((TestResult("a", "t", Verdict.FIXED, "passed", "sim", "e"),))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place],
            check=False,
            capture_output=True,
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.parametrize("name", ["", "results.json", "new/folder", "new/results.json"])
def test_a_full_disk_is_an_error_before_the_run(name: str, small_disk: Path) -> None:
    check_destination(small_disk / name)
    fill(small_disk)
    with pytest.raises(UsageError, match=r"cannot be written: No space left on device"):
        check_destination(small_disk / name)
    assert {path.name for path in small_disk.iterdir()} <= {"filler", "new"}


def test_a_folder_in_dev_takes_results() -> None:
    check_destination(Path("/dev/shm"))


def test_an_existing_file_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written"):
        check_destination(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["results.json", "folder/below"])
def test_a_place_below_a_file_is_an_error_before_the_run(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        check_destination(tmp_path / "file" / name)


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/stdout")):
        for write in (check_destination, lambda path: write_atomically(path, "text")):
            with pytest.raises(UsageError, match=f"^{path}: not a regular file"):
                write(path)


def test_a_folder_where_a_file_is_wanted_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "results.json").mkdir()
    with pytest.raises(UsageError, match=r"results\.json: cannot be written: "):
        check_writable(tmp_path / "results.json")


def test_a_dash_is_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for destination in (Path("-"), Path("-/new")):
        with pytest.raises(UsageError, match="cannot go to standard output: name a file"):
            check_destination(destination)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_result_file_is_kept_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("earlier")
    check_destination(tmp_path / "results.json")
    assert (tmp_path / "results.json").read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_disk_that_fills_up_while_running_leaves_a_copy_in_the_cache(
    small_disk: Path, tmp_path: Path
) -> None:
    check_destination(small_disk)
    fill(small_disk)
    with pytest.raises(
        UsageError, match=r"No space left on device.*A copy of the results is in "
    ) as caught:
        save_results(RUN, small_disk, tmp_path / "cache", print)
    (copy,) = (tmp_path / "cache").iterdir()
    assert str(copy) in str(caught.value)
    assert read_results(copy) == RUN


def test_a_run_whose_output_cannot_be_written_keeps_its_results(
    affected_target: Path, fixed_target: Path, tmp_path: Path
) -> None:
    """Printing the line of the first finished case fails."""
    command = run_of_two(affected_target, fixed_target, tmp_path)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert f"the results so far are in {tmp_path / 'results.json'}" in done.stderr
    assert "standard output: No space left on device" in done.stderr
    kept = read_results(tmp_path / "results.json")
    assert [result.verdict for result in kept.results] == [Verdict.FIXED]
    assert any(f"{fixed_target}: interrupted" in problem for problem in kept.problems)


def test_a_run_whose_terminal_is_closed_keeps_its_results(
    affected_target: Path, fixed_target: Path, tmp_path: Path
) -> None:
    """Regression: the results were lost if the progress bar could not be stopped."""
    terminal, ours = pty.openpty()
    process = subprocess.Popen(
        run_of_two(affected_target, fixed_target, tmp_path),
        stdin=ours,
        stdout=ours,
        stderr=ours,
        env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=functools.partial(fcntl.ioctl, ours, termios.TIOCSCTTY, 0),
    )
    os.close(ours)
    seen = b""
    try:
        while b"FIXED" not in seen:
            seen += os.read(terminal, 4096)
        os.close(terminal)
        process.wait(120)
    finally:
        process.kill()
    assert read_results(tmp_path / "results.json").results[0].verdict == Verdict.FIXED
    assert not [*tmp_path.glob("vr-*")]


def run_of_two(affected_target: Path, fixed_target: Path, tmp_path: Path) -> list[str | Path]:
    """Return the command that runs a case in two environments, one after the other, and saves the
    results in ``tmp_path``."""
    case = CaseFile("one", pattern="expected", affected="<0.1").write(tmp_path / "cases")
    (case.directory / "probe.py").write_text(
        "def version():\n    import vllm\n    return vllm.__version__\n"
    )
    (case.directory / "test_one.py").write_text(
        "import pytest\n@pytest.mark.vllm_case('one')\ndef test_it(vllm_probe):\n    assert vllm_probe('version')\n"
    )
    return [
        *(
            sys.executable,
            "-m",
            "pytest_vllm_regress",
            "--cases",
            tmp_path / "cases",
            "run",
            "--jobs",
            "1",
        ),
        *("--env", affected_target, "--env", fixed_target, "--out", tmp_path / "results.json"),
    ]


@pytest.mark.parametrize("command", ["run", "matrix"])
@pytest.mark.parametrize("name", ["x.json", "x.html", "x"])
def test_the_command_checks_before_it_runs(
    command: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    monkeypatch.setattr(run, "_Run", lambda *arguments: started.append(arguments))
    (tmp_path / "file").touch()
    status = main(
        [command, "vllm-17173", "--env", sys.executable, "--out", str(tmp_path / "file" / name)]
    )
    assert status == 2
    assert "cannot be written: " in "".join(capsys.readouterr())
    assert started == []
