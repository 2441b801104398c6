"""Units of memory, in bytes."""

from __future__ import annotations

MIB, GIB = 2**20, 2**30
