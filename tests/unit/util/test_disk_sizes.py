"""What folders take on the disk, and what the disk gains when they go."""

from __future__ import annotations

from pathlib import Path

from pytest_vllm_regress.util.sizes import freed_by_removing


def test_only_what_nobody_else_shares_is_freed(tmp_path: Path) -> None:
    cache, one, two = (tmp_path / name for name in ("cache", "one", "two"))
    for folder in (cache, one, two):
        folder.mkdir()
    (one / "own").write_bytes(b"x" * 8192)
    (one / "cached").write_bytes(b"x" * 8192)
    (cache / "cached").hardlink_to(one / "cached")
    (one / "both").write_bytes(b"x" * 8192)
    (two / "both").hardlink_to(one / "both")
    assert freed_by_removing(one) == 8192
    assert freed_by_removing(one, two) == 16384
    assert freed_by_removing(tmp_path / "gone") == 0
