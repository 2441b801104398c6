"""What a file is by its name, for those who do not read it."""

from __future__ import annotations


def is_dockerfile(file: str) -> bool:
    """Return whether a file is named as a Dockerfile is."""
    name = file.rpartition("/")[2].lower()
    return name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile")
