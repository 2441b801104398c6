"""Two stand-ins for vLLM: one to build environments from (source tree, wheel, index of releases),
and one for warm agents to import."""

from __future__ import annotations

import datetime
from pathlib import Path

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
RELEASED = {
    "0.1": datetime.date(2025, 2, 1),
    "0.2": datetime.date(2025, 3, 3),
    "0.3": datetime.date(2025, 3, 20),
}


TORCH = {"0.1": "2.5.0", "0.2": "2.6.0", "0.3": "2.7.0"}


class Index:
    """A package index with releases of vllm and their dates."""

    def newest(self, package: str, day: datetime.date) -> str | None:
        return max(
            (version for version, released in RELEASED.items() if released <= day), default=None
        )

    def date(self, package: str, version: str) -> datetime.date:
        if version not in RELEASED:
            raise BuildError(f"{package}=={version} cannot be found")
        return RELEASED[version]


IMPORTED = {
    "__init__.py": "__version__ = '0.8.5'",
    "envs.py": "environment_variables = {}",
    "platforms/__init__.py": "resolve_current_platform_cls_qualname = None",
    "engine/__init__.py": "from vllm import client",
    "client.py": "import os\nPATIENCE = os.getenv('VLLM_PATIENCE', '10')",
    "engine/arg_utils.py": "import sys\nsys.path.append('/vendored')  # as setuptools does\nclass EngineArgs: _is_v1_supported_oracle = None",
    "plugins.py": """
import os
loaded_in, plugins_loaded = [], False
def load_general_plugins():
    if not plugins_loaded:
        loaded_in.append(os.getpid())
""",
    "entrypoints/__init__.py": "",
    "entrypoints/cli/serve.py": "from vllm.entrypoints.openai.cli_args import make_arg_parser",
    "entrypoints/openai/cli_args.py": """
import os
from argparse import ArgumentParser as FlexibleArgumentParser
from vllm import plugins
def make_arg_parser(parser):
    plugins.load_general_plugins()
    parser.add_argument("--built-in", default=os.getpid())
    return parser
""",
    "ray/lazy_utils.py": "def is_ray_initialized():\n    import vllm.ray.cluster",
    "ray/cluster.py": "",
    "entrypoints/serve/adapters/api_router.py": "",
    "entrypoints/serve/broken/api_router.py": "raise RuntimeError",
    "model_executor/__init__.py": "",
    "model_executor/models/__init__.py": "",
    "model_executor/models/registry.py": """
import functools, os
from types import SimpleNamespace
ModelRegistry = SimpleNamespace(models={"Small": "small", "Large": "large", "Broken": "broken"})
def _run_in_subprocess(function):
    raise RuntimeError("an interpreter of its own")
def _learn(model):
    from vllm import plugins
    if model == "broken":
        os._exit(3)
    return {"model": model, "by": os.getpid(), "plugins": plugins.loaded_in}
@functools.lru_cache
def _try_inspect_model_cls(architecture, model):
    return _run_in_subprocess(lambda: _learn(model))
""",
}
"""Modules of vLLM that a warm agent imports, and what their import does."""
REPORT = """
import os
def learned(architecture):
    from vllm.model_executor.models import registry
    try:
        found = registry._try_inspect_model_cls(architecture, registry.ModelRegistry.models[architecture])
    except RuntimeError as error:
        return str(error)
    return {**found, "here": os.getpid(), "agent": os.getppid()}
def variable(name):
    return os.environ.get(name)
def imported():
    import sys
    return [name for name in sys.modules if name.startswith("vllm.")]
def parser():
    from vllm import plugins
    from vllm_regress_target.dialect import commandline
    return {
        "built in": commandline.serve_parser().get_default("built_in"),
        "here": os.getpid(),
        "plugins": [plugins.plugins_loaded, plugins.loaded_in],
    }
def plugins(read=True):
    import importlib.metadata
    if not read:
        importlib.metadata.distributions = None  # reading the metadata of all packages would call it
    return [point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins")]
def patience():
    from vllm import client
    return client.PATIENCE
"""
"""A probe whose functions report what a child has inherited."""


def install(python: Path) -> None:
    """Install the fake vLLM that warm agents import into the environment of ``python``."""
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    for name, text in IMPORTED.items():
        file = site / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def at_import(python: Path, code: str) -> None:
    """Add ``code`` to the installed fake, which executes it on import."""
    module = next(python.parent.parent.glob("lib/python3.*/site-packages/vllm/__init__.py"))
    module.write_text(f"{module.read_text()}\n{code}\n")
