"""A fake vLLM for environments from source: its source tree, the wheel of a release, and an index of releases."""

from __future__ import annotations

import datetime

from pytest_vllm_regress.errors import BuildError

IGNORE = "*.so\n/vllm/_version.py\nvllm/flash/*\n!vllm/flash/utils.py\n__pycache__\n"
TREE = {
    ".gitignore": IGNORE,
    "requirements/cuda.txt": "-r common.txt\ntorch==2.6.0\n",
    "requirements/common.txt": "numpy # for arrays\nmsgspec >= 0.18; python_version >= '3.0'\n",
    "csrc/kernel.cu": "one\n",
    "vllm/__init__.py": "from .old import value\n",
    "vllm/old.py": "value = 1\n",
    "vllm/flash/utils.py": "",
    "docs/index.md": "",
}
WHEEL = {
    "vllm/__init__.py": "from .new import value\n",
    "vllm/new.py": "value = 'the wheel'\n",
    "vllm/_version.py": "__version__ = '0.2'\n",
    "vllm/_C.abi3.so": "library",
    "vllm/flash/interface.py": "",
    "vllm/flash/utils.py": "the wheel's",
    "vllm-0.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.2\nRequires-Dist: numpy\n\nVersion: 0.2 is fine\n",
    "vllm-0.2.dist-info/entry_points.txt": "[console_scripts]\nvllm = vllm.cli:main\n",
    "numpy/__init__.py": "here = __file__\n",
    "numpy-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: numpy\nVersion: 2.0\n",
    "msgspec-0.19.dist-info/METADATA": "Metadata-Version: 2.1\nName: msgspec\nVersion: 0.19\n",
    "hack.pth": "import sys; sys.hacked = True\n",
}
RELEASED = {"0.1": datetime.date(2025, 2, 1), "0.2": datetime.date(2025, 3, 3), "0.3": datetime.date(2025, 3, 20)}


TORCH = {"0.1": "2.5.0", "0.2": "2.6.0", "0.3": "2.7.0"}


class Index:
    """A package index with releases of vllm and their dates."""

    def newest(self, package: str, day: datetime.date) -> str | None:
        return max((version for version, released in RELEASED.items() if released <= day), default=None)

    def date(self, package: str, version: str) -> datetime.date:
        if version not in RELEASED:
            raise BuildError(f"{package}=={version} cannot be found")
        return RELEASED[version]
