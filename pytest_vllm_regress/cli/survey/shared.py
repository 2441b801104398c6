"""What an interrupted survey has measured, kept for the same command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from ...runner.batch import digest
from ...util.paths import writable_root
from ...util.store import Store

T = TypeVar("T")


@contextlib.contextmanager
def resumed(
    opened: Callable[..., Store[T]], command: Collection[str], *, fresh: bool
) -> Iterator[Store[T]]:
    """Return what the same command has measured so far. ``command``: what tells it from others."""
    name = f"{opened.__name__}-{digest(*command)[:16]}.jsonl"
    with contextlib.closing(opened(Path(writable_root(), "surveys", name), fresh=fresh)) as store:
        store.lock()
        yield store
