"""Commands under limits of the machine, without permissions and in odd namespaces end with a message
that says what is missing, never with an internal error."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.cli.context import Invocation
from pytest_vllm_regress.util.store import Store

PROGRAM = str(Path(sys.executable).with_name("vllm-regress"))
AUDIT = ("audit", "vllm==0.8.4")
MATRIX = ("matrix", "vllm-17173", "--env", "vllm-0.8.4", "--dry-run")
RELEASES = ("matrix", "vllm-17173", "--releases", ">=0.8.4,<0.8.5", "--dry-run")
RUN = ("run", "vllm-17173", "--env", "vllm-0.8.4")

is_root = pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, ("setpriv", "capsh", "unshare"))),
    reason="needs root, setpriv, capsh and unshare",
)


def ended(
    prefix: Sequence[str], script: str, cache: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the command below a shell script, with another cache."""
    done = subprocess.run(
        [*prefix, "bash", "-c", f'{script} exec "$0" "$@"', PROGRAM, *arguments],
        env={**os.environ, "VLLM_REGRESS_CACHE": str(cache)},
        cwd=cache.parent,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2), done
    return done


@is_root
@pytest.mark.parametrize("arguments", [AUDIT, MATRIX, RELEASES, RUN], ids=" ".join)
def test_without_another_process(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, 65534, 65534)
    readable = "+dac_override,+dac_read_search"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    nobody += [f"--inh-caps={readable}", f"--ambient-caps={readable}"]
    done = ended(nobody, "ulimit -u 1;", cache, *arguments)
    if arguments in (RELEASES, RUN):
        assert done.returncode == 2 and "ulimit -u" in done.stderr


@pytest.mark.parametrize(
    "arguments", [AUDIT, ("list",), ("uses",), MATRIX, ("site", "--out", "s")], ids=" ".join
)
def test_in_a_folder_that_was_removed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    script = "mkdir gone; cd gone; rmdir ../gone;"
    done = ended([], script, tmp_path / "cache", *arguments)
    assert done.returncode == 1 or "working directory" in done.stderr


@is_root
@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", "closed/requirements.txt"),
        ("audit", "closed/x"),
        ("audit", "closed"),
        ("audit", "vllm==0.8.4", "--serve", "closed/x"),
        ("compare", "closed/x", "0.8.4"),
        ("run", "vllm-17173", "--env", "closed/python"),
        ("explain", "closed/log"),
        ("uses", "closed/x"),
        ("report", "closed/x.json"),
        ("--cases", "closed/x", "list"),
        ("site", "--out", "closed/site"),
        ("audit", "--env", "./closed/python"),
    ],
    ids=" ".join,
)
def test_without_permission(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    without = ["capsh", "--drop=cap_dac_override,cap_dac_read_search", "--shell=/usr/bin/env", "--"]
    done = ended(without, "", tmp_path / "cache", *arguments)
    assert done.returncode == 2
    assert re.search(r"closed.*: Permission denied|cannot be written", done.stderr), done.stderr


@is_root
@pytest.mark.parametrize("variable", ["VLLM_REGRESS_CACHE", "HOME", "XDG_CACHE_HOME", "TMPDIR"])
@pytest.mark.parametrize("arguments", [AUDIT, MATRIX, ("doctor",), ("env", "list")], ids=" ".join)
def test_without_permission_for_own_folders(
    tmp_path: Path, variable: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    without = ["capsh", "--drop=cap_dac_override,cap_dac_read_search", "--shell=/usr/bin/env", "--"]
    unset = "unset VLLM_REGRESS_CACHE;" if variable != "TMPDIR" else ""
    ended(without, f"{unset} export {variable}={tmp_path}/closed;", tmp_path / "cache", *arguments)


def test_on_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    store = Store(tmp_path / "x.jsonl", dict[str, str], what="a record")
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(Invocation, "cases", lambda self: store.lock())
    assert main(["list"]) == 2
    assert "whose file system has locks" in capsys.readouterr().err


@is_root
@pytest.mark.parametrize("options", ["-U", "-r", "-rm", "-rp --fork"])
@pytest.mark.parametrize("arguments", [AUDIT, MATRIX, ("doctor",)], ids=" ".join)
def test_in_a_user_namespace(tmp_path: Path, options: str, arguments: tuple[str, ...]) -> None:
    if subprocess.run(["unshare", *options.split(), "true"], check=False).returncode:
        pytest.skip("this machine has no such namespaces")
    ended(["unshare", *options.split()], "", tmp_path / "cache", *arguments)
