"""Folders and interpreters that are audited are read with bounded work, whatever they contain or
print."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.engines.processes import process_tree
from pytest_vllm_regress.environments import installed
from pytest_vllm_regress.environments.installed import open_environment, open_interpreter
from pytest_vllm_regress.errors import UsageError

LINES, PACKAGES = 3000, 200


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The package folder of an environment with many packages and one of vLLM."""
    folder = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    for name in ("vllm-0.8.4", *(f"a{number}-1" for number in range(PACKAGES))):
        (folder / f"{name}.dist-info").mkdir(parents=True)
        (folder / f"{name}.dist-info" / "METADATA").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("version = 3.11.9\n")
    return folder


def spellings(site: Path) -> list[str]:
    """Return many names of one folder: through its parents, and links."""
    for number in range(LINES):
        (site / f"x{number}").mkdir()
        (site / f"link{number}").symlink_to(".")
    return [
        *(f"x{number}/../x{number + 1}/.." for number in range(LINES - 1)),
        *(f"link{number}" for number in range(LINES)),
        *("./" * number for number in range(1, 100)),
    ]


def test_a_folder_with_many_spellings_is_read_once(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = spellings(site)
    (site / "a.pth").write_text("\n".join(names))
    began = time.process_time()
    assert len(open_environment(tmp_path / "env").distributions()) == PACKAGES + 1
    assert main(["audit", str(tmp_path / "env")]) == 1
    assert time.process_time() - began < 30
    assert "vllm 0.8.4" in capsys.readouterr().out


def test_a_folder_named_in_a_pth_file_counts_once(site: Path, tmp_path: Path) -> None:
    (tmp_path / "more" / "b-1.dist-info").mkdir(parents=True)
    (tmp_path / "more" / "b-1.dist-info" / "METADATA").write_text("")
    for name in ("a.pth", "b.pth"):
        (site / name).write_text(f"{tmp_path / 'more'}\n{tmp_path / 'more'}/\nimport sys\n#x\n\0\n")
    names = [package.name for package in open_environment(tmp_path / "env").distributions()]
    assert names.count("b") == 1


@pytest.mark.parametrize("split", [1, 10])
def test_lines_of_pth_files_are_limited(site: Path, tmp_path: Path, split: int) -> None:
    for number in range(split):
        lines = installed._MAX_PTH_LINES // split + 1
        (site / f"{number}.pth").write_text("".join(f"nowhere{line}\n" for line in range(lines)))
    with pytest.raises(UsageError, match=r"\.pth files name more than"):
        open_environment(tmp_path / "env")


def test_packages_are_limited(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed._MAX_PACKAGES <= 10_000
    monkeypatch.setattr(installed, "_MAX_PACKAGES", PACKAGES)
    with pytest.raises(UsageError, match="more than 200 packages"):
        open_environment(tmp_path / "env").distributions()


def test_large_metadata_is_not_read_to_its_end(site: Path, tmp_path: Path) -> None:
    for number in range(300):
        place = site / f"nameless{number}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Name: n{number}\nVersion: 1\n")
        os.truncate(place / "METADATA", 10**9)
        (site / f"vllm-0.{number}.dist-info").mkdir()
        (site / f"vllm-0.{number}.dist-info" / "METADATA").write_text("")
        (site / f"vllm-0.{number}.dist-info" / "RECORD").write_text("")
        os.truncate(site / f"vllm-0.{number}.dist-info" / "RECORD", 10**9)
    began = time.process_time()
    names = {package.name for package in open_environment(tmp_path / "env").distributions()}
    assert {"n0", "n299", "vllm"} <= names
    assert time.process_time() - began < 10


@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output_of_an_interpreter_is_bounded(tmp_path: Path, stream: int) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat /dev/zero >&{stream}\n")
    program.chmod(0o755)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(UsageError, match="printed more than"):
        open_interpreter(program)
    assert time.monotonic() - began < installed._START_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert main(["audit", "--env", str(program)]) == 2


def test_nothing_is_left_of_an_interpreter_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_START_S", 0.5)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/pid\nwait\n")
    program.chmod(0o755)
    with pytest.raises(UsageError, match="did not answer"):
        open_interpreter(program)
    sleep = process_tree.find(int((tmp_path / "pid").read_text()))
    assert sleep is None or process_tree.wait_until_gone([sleep], 10) == []


def test_an_interpreter_that_answers_is_read(tmp_path: Path) -> None:
    assert open_interpreter(Path(sys.executable)).version.startswith("3.")
