"""Build hooks of the wheel: metadata with the project's addresses, and an archive of the files
beside the package.

VLLM_REGRESS_REPOSITORY is the address of the repository, for example https://github.com/OWNER/NAME.
Set it when the package is built for
publishing: then the metadata has project URLs, and the links of the README are absolute. Without it
the README is unchanged and there are no URLs.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "VLLM_REGRESS_REPOSITORY"
SHIPPED = ("cases", "conformance", "locks", "docs/findings", "environments.toml")
"""Files and folders of the project that the package needs at run time."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class RepositoryHook(MetadataHookInterface):  # type: ignore[misc]  # only builds have hatchling
    """Set ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = os.environ.get(VARIABLE, "").rstrip("/")
        if address and not address.startswith("https://"):
            raise ValueError(
                f"{VARIABLE}={address!r}: expected an address that begins with https://"
            )
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, address) if address else text,
        }
        metadata["urls"] = addresses(address) if address else {}


def addresses(repository: str) -> dict[str, str]:
    """Return the project's addresses by their labels on an index page."""
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def absolute(text: str, repository: str) -> str:
    """Return Markdown with absolute links into the repository. Pictures link to the raw files."""
    return _RELATIVE.sub(
        lambda m: f"{m[1]}{m[2]}({repository}/{'raw' if m[1] else 'blob'}/main/{m[3]})", text
    )


class ArchiveHook(BuildHookInterface[Any]):  # type: ignore[misc]  # only builds have hatchling
    """Pack ``SHIPPED`` into the wheel as one archive; ``pytest_vllm_regress.util.paths.shipped``
    reads it.

    One archive, because pytest reads a plugin's list of files at every start.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            archive = Path(self._folder.name, "project.zip")
            pack(Path(self.root), archive)
            build_data["force_include"][str(archive)] = "pytest_vllm_regress/data/project.zip"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def pack(root: Path, archive: Path) -> None:
    """Write the archive. Equal files give equal bytes: times and folder order are not stored."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(file for name in SHIPPED for file in _files(root / name)):
            packed.writestr(
                zipfile.ZipInfo(str(file.relative_to(root)), _EPOCH),
                file.read_bytes(),
                zipfile.ZIP_DEFLATED,
            )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc"]
