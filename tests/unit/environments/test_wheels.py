"""Reading a wheel: over range requests, from a server without them, from a file."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pytest_vllm_regress.environments import uv, wheels
from pytest_vllm_regress.errors import BuildError

URL = "https://index.example/vllm.whl"
SOURCES = {"vllm/a.py": b"x = 1\n" * 50, "vllm-1.dist-info/METADATA": b"Name: vllm\n"}


def packed(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


WHEEL = packed({"vllm/_C.so": bytes(4 * wheels.BLOCK), **SOURCES, "vllm/more.so": b"\0" * 999})


@pytest.fixture
def served(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[httpx.Request], httpx.Response]], None]:
    """Return a function that makes a handler answer all requests."""

    def serve(handler: Callable[[httpx.Request], httpx.Response]) -> None:
        client = httpx.Client(transport=httpx.MockTransport(handler))
        monkeypatch.setattr(httpx, "Client", lambda **_: client)
        monkeypatch.setattr(wheels, "wheel_url", lambda package, version, python: URL)

    return serve


def with_ranges(request: httpx.Request) -> httpx.Response:
    start, _, end = request.headers["range"].removeprefix("bytes=").partition("-")
    first = len(WHEEL) - int(end) if not start else int(start)
    content = WHEEL[first : int(end) + 1 if start else None]
    return httpx.Response(
        206, content=content, headers={"content-range": f"bytes {first}-{first}/{len(WHEEL)}"}
    )


def test_ranges_are_enough(served: Callable[[object], None]) -> None:
    sizes = []

    def handler(request: httpx.Request) -> httpx.Response:
        response = with_ranges(request)
        sizes.append(len(response.content))
        return response

    served(handler)
    assert wheels.read_release("vllm", "1") == SOURCES
    assert max(sizes) <= wheels.BLOCK


def test_metadata_alone_is_read(served: Callable[[object], None]) -> None:
    served(with_ranges)
    assert wheels.read_metadata("vllm", "1", "3.11") == "Name: vllm\n"


def test_a_wheel_without_metadata_is_refused(served: Callable[[object], None]) -> None:
    served(lambda request: httpx.Response(200, content=packed({"vllm/a.py": b""})))
    with pytest.raises(BuildError, match="no metadata"):
        wheels.read_metadata("vllm", "1", "3.11")


def test_a_server_without_ranges_is_asked_for_the_whole(served: Callable[[object], None]) -> None:
    served(lambda request: httpx.Response(200, content=WHEEL))
    assert wheels.read_release("vllm", "1") == SOURCES


def test_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a wheel.whl").write_bytes(WHEEL)
    monkeypatch.setattr(
        wheels, "wheel_url", lambda package, version, python: (tmp_path / "a wheel.whl").as_uri()
    )
    assert wheels.read_release("vllm", "1") == SOURCES


def test_a_broken_connection_is_tried_again(served: Callable[[object], None]) -> None:
    failures = iter([True, False, True, True])

    def handler(request: httpx.Request) -> httpx.Response:
        if next(failures, False):
            raise httpx.ReadError("reset")
        return with_ranges(request)

    served(handler)
    assert wheels.read_release("vllm", "1") == SOURCES


@pytest.mark.parametrize("status", [404, 500])
def test_an_error_names_the_release(served: Callable[[object], None], status: int) -> None:
    served(lambda request: httpx.Response(status))
    with pytest.raises(BuildError, match=r"vllm 0\.9\.9 cannot be read"):
        wheels.read_release("vllm", "0.9.9")


def test_something_that_is_no_wheel_is_refused(served: Callable[[object], None]) -> None:
    served(lambda request: httpx.Response(200, content=b"<html>"))
    with pytest.raises(BuildError, match="not a zip file"):
        wheels.read_release("vllm", "1")


def test_a_source_that_is_too_large_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.whl"
    path.write_bytes(packed({"vllm/a.py": bytes(wheels.MAX_MEMBER + 1)}))
    monkeypatch.setattr(wheels, "wheel_url", lambda package, version, python: path.as_uri())
    with pytest.raises(BuildError, match="above"):
        wheels.read_release("vllm", "1")


def sdist(members: dict[str, bytes], *links: str) -> bytes:
    """A source distribution with these files, and links to /etc/passwd."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"vllm-1/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name in links:
            entry = tarfile.TarInfo(f"vllm-1/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
    return buffer.getvalue()


SDIST = sdist({"tests/test_a.py": b"a", "vllm/a.py": b"b"}, "tests/test_link.py")


@pytest.fixture
def indexed(
    served: Callable[[object], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., None]:
    """Return a function that puts a source distribution on the index."""
    monkeypatch.setenv("VLLM_REGRESS_CACHE", str(tmp_path / "cache"))

    def put(content: bytes, **entry: object) -> None:
        announced = {
            "url": "https://index.example/vllm-1.tar.gz",
            "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
            **entry,
        }
        packages = [{"name": "vllm", "sdist": announced}]
        monkeypatch.setattr(uv, "pylock", lambda *_, **__: (packages, ""))
        served(lambda request: httpx.Response(200, content=content))

    return put


def test_a_source_distribution_is_announced_and_downloaded_once(
    indexed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(SDIST, size=2 * 1024 * 1024)
    said: list[str] = []
    place = wheels.source_distribution("vllm", "1", said.append)
    assert said == ["downloading the source distribution of vllm 1: 2 MiB"]
    monkeypatch.delattr(uv, "pylock")
    assert wheels.source_distribution("vllm", "1", said.append) == place
    assert wheels.read_source_distribution(place, lambda path: path.startswith("tests/")) == {
        "tests/test_a.py": b"a"
    }


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"hashes": {"sha256": "0" * 64}}, "SHA-256 differs"),
        ({"hashes": {}}, "SHA-256 differs"),
        ({"size": wheels.MAX_ARCHIVE + 1}, "or larger"),
        ({"url": "https://index.example/../../other.tar.gz"}, "not on the package index"),
    ],
)
def test_another_source_distribution_than_announced_is_refused(
    indexed: Callable[..., None], entry: dict[str, object], message: str, tmp_path: Path
) -> None:
    indexed(SDIST, **entry)
    with pytest.raises(BuildError, match=message):
        wheels.source_distribution("vllm", "1")
    assert not (tmp_path / "cache" / wheels.SDISTS).exists()


@pytest.mark.parametrize(
    "content",
    [b"no archive", SDIST[:-30], gzip.compress(b"no tar" * 200, mtime=0)],
    ids=["no archive", "cut", "no tar"],
)
def test_a_broken_source_distribution_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(BuildError, match="not a source distribution"):
        wheels.read_source_distribution(tmp_path / "a.tar.gz", lambda path: True)


def test_a_source_distribution_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "MAX_SOURCES", 1024 * 1024)
    (tmp_path / "a.tar.gz").write_bytes(sdist({"tests/large.txt": bytes(2 * 1024 * 1024)}))
    with pytest.raises(BuildError, match="unpacks to more than"):
        wheels.read_source_distribution(tmp_path / "a.tar.gz", lambda path: False)
