"""Where things are: the package's own files, and what is kept between runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import platformdirs

from .files import private_folder

PACKAGE = Path(__file__).parents[1]
"""The installed package."""
DATA = PACKAGE / "data"
"""Files that come with the package."""


def shipped(in_package: str, in_checkout: str) -> Path:
    """Files that a wheel holds in ``data`` and a checkout beside the package: the place that is there."""
    packaged = DATA / in_package
    return packaged if packaged.exists() else PACKAGE.parent / in_checkout


def cache_root() -> Path:
    """Where everything that can be made again is kept: VLLM_REGRESS_CACHE, or the user's cache directory.

    It is made where it is not there yet, for its user alone: results, logs and interpreters are in it.
    """
    given = os.environ.get("VLLM_REGRESS_CACHE")
    root = Path(given).expanduser().absolute() if given else Path(platformdirs.user_cache_dir("vllm-regress"))
    with contextlib.suppress(OSError):  # who writes there says so
        private_folder(root)
    return root
