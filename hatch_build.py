"""What the package's metadata says of the place where the project lives: its addresses, and a README whose links work on an index page.

The address is the publisher's: VLLM_REGRESS_REPOSITORY, for example https://github.com/OWNER/NAME, set when the package is built for publishing.
Without it the README stays as it is and no address is claimed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "VLLM_REGRESS_REPOSITORY"
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
