"""Package indexes and wheels that somebody made to do harm."""

from __future__ import annotations

import contextlib
import http.server
import io
import itertools
import os
import resource
import stat
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_vllm_regress.cli import main
from pytest_vllm_regress.environments import installed, uv
from pytest_vllm_regress.environments.releases import releases
from pytest_vllm_regress.errors import BuildError
from pytest_vllm_regress.util.sizes import GIB, MIB
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


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """An index whose pages for every package are these parts; the last one is repeated without
    end."""
    parts: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            with contextlib.suppress(OSError):
                for part in itertools.chain(parts, itertools.repeat(parts[-1])):
                    if not part:
                        return
                    self.wfile.write(part)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        yield parts
        server.shutdown()


def listing(*versions: str) -> bytes:
    names = [f"vllm-{version}-py3-none-any.whl" for version in versions]
    return "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()


def test_a_list_of_releases_without_end_takes_little_memory(
    index: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed._MAX_MEMORY <= 4 * GIB
    monkeypatch.setattr(installed, "_MAX_MEMORY", 256 * MIB)
    index.append(listing("0.8.4") * 10_000)
    with pytest.raises(BuildError, match="cannot be listed"):
        releases("vllm")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1024 * 1024  # KiB


def test_releases_are_limited(index: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_vllm_regress.environments.releases.MAX_RELEASES", 3)
    index += [listing("0.8.1", "0.8.2", "0.8.3", "0.8.4"), b""]
    with pytest.raises(BuildError, match="4 releases; 3 are the limit"):
        releases("vllm")


def test_strange_releases_do_not_stop_a_matrix(
    index: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    strange = (
        "0.8.4+cu118",
        "1!0.8.4",
        "9" * 30,
        "0.8.4\u0661",
        "../0.8",
        "-x",
        "0.8.4;rm",
        "0." * 999,
    )
    index += [listing("0.8.4", *strange), b""]
    assert main(["matrix", "vllm-17173", "--releases", ">=0.8,<0.9", "--dry-run"]) == 0
    assert "vllm-0.8.4" in capsys.readouterr().out


def test_what_uv_installs_is_not_writable_by_others(fake: Fake) -> None:
    fake.program.write_text(f"#!{sys.executable} -SE\nimport os\nprint(oct(os.umask(0)))\n")
    before = os.umask(0o000)
    try:
        assert int(uv.run(["pip"], doing="asking"), 8) == 0o022
        os.umask(0o077)
        assert int(uv.run(["pip"], doing="asking"), 8) == 0o077
    finally:
        os.umask(before)
