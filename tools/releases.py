"""Write the list of releases that environments can be made from, according to the user's package
index: ``python -m tools.releases``."""

from __future__ import annotations

import json

from pytest_vllm_regress.environments.installed import GRAMMARS
from pytest_vllm_regress.environments.recipes import PACKAGES
from pytest_vllm_regress.environments.releases import RELEASES, releases

if __name__ == "__main__":
    by_package = {
        package: [str(version) for version in releases(package)]
        for package in (*PACKAGES, *GRAMMARS)
    }
    lines = (
        f" {json.dumps(package)}: {json.dumps(versions)}"
        for package, versions in by_package.items()
    )
    RELEASES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
