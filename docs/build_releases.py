"""Writes the list of releases that environments may be made up from, as the user's package index has them: ``python docs/build_releases.py``."""

from __future__ import annotations

import json

from pytest_vllm_regress.environments.index import RELEASES, releases
from pytest_vllm_regress.environments.recipes import GRAMMARS, PACKAGES

if __name__ == "__main__":
    found = {package: [str(version) for version in releases(package)] for package in (*PACKAGES, *GRAMMARS)}
    lines = (f" {json.dumps(package)}: {json.dumps(versions)}" for package, versions in found.items())
    RELEASES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
