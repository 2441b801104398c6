"""Other Pythons on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def python(version: str) -> Path | None:
    """An interpreter of that version, ``3.12``: this one, one on the PATH, or pyenv's; None where there is none that runs."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    named = shutil.which(f"python{version}")
    for each in [*([Path(named)] if named else []), *sorted(pyenv.glob(f"versions/{version}.*/bin/python3"))]:
        asked = [str(each), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == version:
            return each
    return None
