"""Package indexes and wheels that somebody made to do harm."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from pytest_vllm_regress.environments import uv
from pytest_vllm_regress.errors import BuildError
from pytest_vllm_regress.util.sizes import MIB
from tests.hostile.test_choices import fake
from tests.integration.environments.conftest import Fake

__all__ = ["fake"]

UP = "../" * 20


def wheel(path: str, content: str, mode: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        info = "evil-1.0.dist-info"
        archive.writestr("evil.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        entry = zipfile.ZipInfo(path)
        entry.external_attr = mode << 16
        archive.writestr(entry, content)
        if stat.S_ISLNK(mode):
            archive.writestr(f"{path}/escaped", "")
        names = [*archive.namelist(), f"{info}/RECORD"]
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    return stream.getvalue()


@pytest.mark.parametrize(
    "path", ["{up}{out}/escaped", "{out}/escaped", "evil-1.0.data/data/{up}{out}/escaped", "link"]
)
def test_no_entry_of_a_wheel_leaves_the_environment(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mode = stat.S_IFLNK | 0o777 if path == "link" else 0o100644
    file = tmp_path / "evil-1.0-py3-none-any.whl"
    file.write_bytes(wheel(path.format(up=UP, out=out).replace("//", "/"), str(out), mode))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    options = ["--quiet", "--offline", "--no-index", "--no-deps", "--python", sys.executable]
    with contextlib.suppress(BuildError):  # refused as a whole
        uv.run(
            ["pip", "install", *options, "--target", tmp_path / "target", file], doing="installing"
        )
    assert not list(out.iterdir())


def test_an_answer_without_end_does_not_take_all_memory(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.program.write_text(
        f"#!{sys.executable} -SE\nimport time\ntime.sleep(0.5)\nparts = []\n"
        "for _ in range(4096):\n    parts.append(bytearray(b'x' * 2**20))\n"
    )
    monkeypatch.setattr(uv, "MAX_MEMORY", 256 * MIB)
    with pytest.raises(BuildError, match="needs more memory"):
        uv.run(["pip", "compile"], doing="resolving")


def test_what_uv_installs_is_not_writable_by_others(fake: Fake) -> None:
    fake.program.write_text(f"#!{sys.executable} -SE\nimport os\nprint(oct(os.umask(0)))\n")
    before = os.umask(0o000)
    try:
        assert int(uv.run(["pip"], doing="asking"), 8) == 0o022
        os.umask(0o077)
        assert int(uv.run(["pip"], doing="asking"), 8) == 0o077
    finally:
        os.umask(before)
