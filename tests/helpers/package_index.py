"""A package index on this machine, and wheels that are made from others."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename


def rebuild_wheel(
    wheel: Path, folder: Path, version: str, replacements: Mapping[str, Sequence[tuple[str, str]]]
) -> Path:
    """Write ``wheel`` as another version into ``folder``, with texts (old, new) replaced in the
    named files. Return the new wheel."""
    _, old_version, *_ = parse_wheel_filename(wheel.name)
    prefix = wheel.name.partition(f"-{old_version}-")[0]
    target = folder / wheel.name.replace(f"{prefix}-{old_version}-", f"{prefix}-{version}-")
    records = io.StringIO()
    rows = csv.writer(records, lineterminator="\n")
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as copy,
    ):
        for entry in source.infolist():
            content = source.read(entry)
            for old, new in replacements.get(entry.filename, ()):
                assert content.count(old.encode()) == 1, (
                    f"{entry.filename} has {old!r} {content.count(old.encode())} times"
                )
                content = content.replace(old.encode(), new.encode())
            place = entry.filename.replace(
                f"{prefix}-{old_version}.dist-info/", f"{prefix}-{version}.dist-info/"
            )
            if place.endswith(".dist-info/RECORD"):
                continue
            if place.endswith(".dist-info/METADATA"):
                content = content.replace(
                    f"\nVersion: {old_version}\n".encode(), f"\nVersion: {version}\n".encode(), 1
                )
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )
            rows.writerow((place, f"sha256={digest}", len(content)))
            info = zipfile.ZipInfo(place, entry.date_time)
            info.external_attr, info.compress_type = entry.external_attr, zipfile.ZIP_DEFLATED
            copy.writestr(info, content)
        record = f"{prefix}-{version}.dist-info/RECORD"
        rows.writerow((record, "", ""))
        copy.writestr(record, records.getvalue())
    return target


@contextlib.contextmanager
def package_index(folder: Path, uploaded: str) -> Iterator[str]:
    """Serve the wheels in ``folder`` as a package index (PEP 691); yield its address.

    ``uploaded``: the time of upload that it states (ISO 8601).
    """

    pages: dict[str, dict[str, Any]] = {}
    for wheel in folder.glob("*.whl"):
        package, version, *_ = parse_wheel_filename(wheel.name)
        page = pages.setdefault(
            package, {"meta": {"api-version": "1.1"}, "name": package, "versions": [], "files": []}
        )
        page["versions"].append(str(version))
        page["files"].append(
            {
                "filename": wheel.name,
                "url": f"/files/{wheel.name}",
                "hashes": {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()},
                "size": wheel.stat().st_size,
                "upload-time": uploaded,
                "core-metadata": True,
            }
        )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = Path(self.path).name
            if self.path.startswith("/files/") and name.endswith(".metadata"):
                self._answer(_metadata(folder / name.removesuffix(".metadata")), "text/plain")
            elif self.path.startswith("/files/"):
                self._answer((folder / name).read_bytes(), "application/octet-stream")
            elif (package := self.path.removeprefix("/simple/").strip("/")) in pages:
                self._answer(
                    json.dumps(pages[package]).encode(), "application/vnd.pypi.simple.v1+json"
                )
            else:
                self.send_error(404)

        def _answer(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(
            next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        )
