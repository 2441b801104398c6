"""What a wheel is built with: the metadata that says where the project lives, and the archive of the files beside the package.

The metadata are addresses, and a README whose links work on an index page. The address is the publisher's: VLLM_REGRESS_REPOSITORY, for example
https://github.com/OWNER/NAME, set when the package is built for publishing. Without it the README stays as it is and no address is claimed.
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
"""What the package needs of the project around it."""
_BEGINNING = (1980, 1, 1, 0, 0, 0)
_RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


class RepositoryHook(MetadataHookInterface):  # type: ignore[misc]  # only builds have hatchling
    """Fills in ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = os.environ.get(VARIABLE, "").rstrip("/")
        if address and not address.startswith("https://"):
            raise ValueError(f"{VARIABLE}={address!r}: it must be an address that begins with https://")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address) if address else text}
        metadata["urls"] = addresses(address) if address else {}


def addresses(repository: str) -> dict[str, str]:
    """The project's addresses by their labels on an index page."""
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def absolute(text: str, repository: str) -> str:
    """Markdown whose links to files of the project lead into the repository; pictures to the files themselves, not to pages about them."""
    return _RELATIVE.sub(lambda m: f"{m[1]}{m[2]}({repository}/{'raw' if m[1] else 'blob'}/main/{m[3]})", text)


class ArchiveHook(BuildHookInterface[Any]):  # type: ignore[misc]  # as above
    """Brings ``SHIPPED`` into a wheel, where ``pytest_vllm_regress.util.paths.shipped`` looks for it."""

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
    """The same bytes from the same files: neither times nor the order of a folder get in."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(file for name in SHIPPED for file in _files(root / name)):
            packed.writestr(
                zipfile.ZipInfo(str(file.relative_to(root)), _BEGINNING), file.read_bytes(), zipfile.ZIP_DEFLATED
            )


def _files(place: Path) -> list[Path]:
    return (
        [place] if place.is_file() else [each for each in place.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    )
