"""Recognize files by their names, without importing the readers of their contents."""

from __future__ import annotations


def is_dockerfile(file: str) -> bool:
    """Return whether a file has the name of a Dockerfile."""
    name = file.rpartition("/")[2].lower()
    return name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile")
