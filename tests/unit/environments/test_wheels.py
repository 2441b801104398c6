"""Reading a wheel: over range requests, from a server without them, from a file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pytest_vllm_regress.environments import wheels
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
