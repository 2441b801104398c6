"""Where things are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """Where everything that can be made again is kept: VLLM_REGRESS_CACHE, or the user's cache directory."""
    given = os.environ.get("VLLM_REGRESS_CACHE")
    return Path(given).expanduser().absolute() if given else Path(platformdirs.user_cache_dir("vllm-regress"))
