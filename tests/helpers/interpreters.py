"""Other Python interpreters on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version such as ``3.12``: this one, one on the PATH, or one of
    pyenv; None if none works."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = shutil.which(f"python{version}")
    candidates = [
        *([Path(on_path)] if on_path else []),
        *sorted(pyenv.glob(f"versions/{version}.*/bin/python3")),
    ]
    for candidate in candidates:
        command = [str(candidate), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if (
            subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            == version
        ):
            return candidate
    return None
