"""Read what a release has on the user's package index: the Python sources and metadata of its wheel,
and its source distribution.

Most of a wheel of vLLM is compiled code. If the index answers range requests, only the parts with
Python sources are transferred; otherwise the wheel is downloaded to a temporary file. A source
distribution, which has upstream's tests, is downloaded as a whole into the cache.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx

from ..errors import BuildError
from ..util.files import private_folder, write_atomically
from ..util.paths import cache_root, check_steps, writable_root
from ..util.sizes import GIB, MIB
from . import uv

PYTHON = "3.12"
TIMEOUT_S = 60.0
RETRIES = 3
"""A mirror that has to fetch a wheel first is silent for long, and breaks some connections."""
MAX_MEMBER = 16 * 1024 * 1024
MAX_SOURCES = GIB
"""Limits in bytes against a wheel that unpacks without end. vLLM 0.33.0 has 50 MB of sources,
the largest 0.3 MB."""
MAX_ARCHIVE = 512 * MIB
"""Bytes of a source distribution. That of vLLM 0.33.0 has 47 MB, unpacked 140 MB."""
SDISTS = "sdists"
"""Folder in the cache."""
BLOCK = 1024 * 1024
"""Bytes requested at once: sources lie next to each other in a wheel."""


def read_release(package: str, version: str) -> dict[str, bytes]:
    """Return the Python sources and the metadata of a release by their names in the wheel.

    Raises ``BuildError`` if the index has no wheel of it for this machine, cannot be reached, or
    returns something that is no wheel.
    """
    with _wheel(package, version, PYTHON) as archive:
        return read_members(archive)


def read_metadata(package: str, version: str, python: str) -> str:
    """Return the metadata of a release's wheel for ``python``. Raises as ``read_release``."""
    with _wheel(package, version, python) as archive:
        for content in read_members(archive, (".dist-info/METADATA",)).values():
            return content.decode(errors="replace")
    raise BuildError(f"the wheel of {package} {version} has no metadata")


@contextlib.contextmanager
def _wheel(package: str, version: str, python: str) -> Iterator[zipfile.ZipFile]:
    url = wheel_url(package, version, python)
    try:
        with _opened(url) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (httpx.HTTPError, OSError, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise BuildError(
            f"the wheel of {package} {version} cannot be read from the package index: {error}"
        ) from None


def wheel_url(package: str, version: str, python: str = PYTHON) -> str:
    """Return the address of the wheel that uv would install for this machine.

    Raises ``BuildError`` if there is none.
    """
    packages, _ = uv.pylock(
        f"{package}=={version}",
        *("--no-deps", "--only-binary", ":all:", "--python-version", python),
        doing=f"looking for the wheel of {package} {version}",
    )
    file = next(iter(uv.compatible_files(packages[0], python)), None)
    if file is None:
        raise BuildError(f"the package index has no wheel of {package} {version} for this machine")
    return _url(file)


def _url(file: Mapping[str, Any]) -> str:
    return str(file["url"]) if "url" in file else Path(file["path"]).as_uri()


def source_distribution(
    package: str, version: str, progress: Callable[[str], None] = lambda line: None
) -> Path:
    """Return the source distribution of a release, which is downloaded into the cache on first use.

    Raises ``BuildError`` if the index has none, cannot be reached, or sends something else than it
    announced.
    """
    name, what = f"{package}-{version}.tar.gz", f"the source distribution of {package} {version}"
    for root in (cache_root(), writable_root()):
        place = root / SDISTS / name
        check_steps(root, place)
        if place.is_file():
            return place
    packages, _ = uv.pylock(f"{package}=={version}", "--no-deps", doing=f"looking for {what}")
    entry = packages[0].get("sdist", {})
    size = entry.get("size", 0)
    if uv.file_name(entry or {"name": "none"}) != name or size > MAX_ARCHIVE:
        raise BuildError(f"{what} is not on the package index, or larger than {MAX_ARCHIVE} bytes")
    progress(f"downloading {what}" + (f": {size / MIB:.0f} MiB" if size else ""))
    try:
        with _opened(_url(entry)) as file:
            content = file.read(MAX_ARCHIVE + 1)
    except (httpx.HTTPError, OSError) as error:
        raise BuildError(f"{what} cannot be read from the package index: {error}") from None
    expected = entry.get("hashes", {}).get("sha256")
    if len(content) > MAX_ARCHIVE or hashlib.sha256(content).hexdigest() != expected:
        raise BuildError(f"{what} is not what the package index announces: its SHA-256 differs")
    private_folder(place.parent)
    write_atomically(place, content)
    return place


def read_source_distribution(archive: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the regular files of a source distribution whose paths, below its folder, are
    ``wanted``. Links are left out.

    Raises ``BuildError`` for what is no such archive, and above the limits of size.
    """
    files: dict[str, bytes] = {}
    try:
        with (
            gzip.open(archive) as stream,
            tarfile.open(fileobj=_Bounded(stream), mode="r|") as members,
        ):
            for member in members:
                path = member.name.partition("/")[2]
                if not (member.isreg() and wanted(path)):
                    continue
                content = members.extractfile(member)
                assert content is not None
                files[path] = content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise BuildError(
            f"{archive}: not a source distribution that can be read: {error}"
        ) from None
    return files


class _Bounded(io.RawIOBase):
    """An unpacked stream that must end before ``MAX_SOURCES`` bytes."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream, self._left = stream, MAX_SOURCES

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(content)
        if self._left < 0:
            raise OSError(f"it unpacks to more than {MAX_SOURCES} bytes")
        return content


def read_members(
    archive: zipfile.ZipFile, suffixes: tuple[str, ...] = (".py", ".dist-info/METADATA")
) -> dict[str, bytes]:
    """Return the files in a wheel that have one of ``suffixes``, in the order of their names.

    Raises ``BuildError`` above the limits of size.
    """
    members = [entry for entry in archive.infolist() if entry.filename.endswith(suffixes)]
    if (
        any(entry.file_size > MAX_MEMBER for entry in members)
        or sum(e.file_size for e in members) > MAX_SOURCES
    ):
        raise BuildError(
            f"the wheel has a source above {MAX_MEMBER} bytes, or more than {MAX_SOURCES} in all"
        )
    in_file_order = sorted(members, key=lambda entry: entry.header_offset)
    return dict(sorted((entry.filename, archive.read(entry)) for entry in in_file_order))


@contextlib.contextmanager
def _opened(url: str) -> Iterator[io.BufferedIOBase]:
    """Yield the wheel as a seekable file."""
    if url.startswith("file:"):
        with open(url2pathname(urlsplit(url).path), "rb") as file:
            yield file
        return
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S) as client:
        head = _get(client, url, {"Range": "bytes=-1"})
        if (
            head.status_code == httpx.codes.PARTIAL_CONTENT
            and (size := _size(head.headers)) is not None
        ):
            yield io.BufferedReader(RemoteFile(client, url, size), BLOCK)
            return
        with tempfile.TemporaryFile() as whole:
            with client.stream("GET", url) as response:
                response.raise_for_status()
                for block in response.iter_bytes(BLOCK):
                    whole.write(block)
            whole.seek(0)
            yield whole


class RemoteFile(io.RawIOBase):
    """A file behind an HTTP server that answers range requests."""

    def __init__(self, client: httpx.Client, url: str, size: int) -> None:
        self._client, self._url, self._size, self._at = client, url, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed has a wider buffer
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        response = _get(self._client, self._url, {"Range": f"bytes={self._at}-{end - 1}"})
        content = response.content
        if response.status_code != httpx.codes.PARTIAL_CONTENT or len(content) != end - self._at:
            raise OSError(
                f"the server returned {len(content)} of {end - self._at} bytes, status {response.status_code}"
            )
        buffer[: len(content)] = content
        self._at = end
        return len(content)


def _get(client: httpx.Client, url: str, headers: Mapping[str, str]) -> httpx.Response:
    """Request part of a file; a broken connection is tried again.

    Reads no more than the headers of a full response.
    """
    for attempt in range(RETRIES):
        try:
            with client.stream("GET", url, headers=dict(headers)) as response:
                if response.status_code == httpx.codes.PARTIAL_CONTENT:
                    response.read()
                elif response.status_code != httpx.codes.OK:
                    response.raise_for_status()
                return response
        except httpx.TransportError:
            if attempt == RETRIES - 1:
                raise
    raise AssertionError("unreachable")


def _size(headers: Mapping[str, str]) -> int | None:
    total = headers.get("content-range", "").rpartition("/")[2]
    return int(total) if total.isdecimal() else None
