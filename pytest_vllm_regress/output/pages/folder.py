"""Writing a folder of pages.

The names of its files are kept in it, so that the next time pages that are gone are removed, and
nothing else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from ...errors import UsageError
from ...util.documents import load_json
from ...util.files import parts_below, write_atomically

LIST = ".vllm-regress-pages.json"
_MAX_LIST = 4 * 1024 * 1024


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files below ``folder``, and remove those of an earlier time.

    Raises ``UsageError`` for a folder that has other files and no pages of ours, and if writing
    fails.
    """
    before = _written_before(folder)
    for name, content in files.items():
        write_atomically(folder.joinpath(*parts_below(name)), content, sync=False)
    for name in before - set(files):
        with contextlib.suppress(OSError):
            folder.joinpath(*parts_below(name)).unlink()
    write_atomically(folder / LIST, json.dumps(sorted(files), indent=0) + "\n")


def _written_before(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    if not (folder / LIST).is_file():
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder}: has other files, which pages could overwrite. Choose a new or an empty folder"
            )
        return set()
    names = load_json(folder / LIST, _MAX_LIST, what="a list of pages")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{folder / LIST}: not a list of names. Remove the folder, or choose another one"
        )
    return set(names)
