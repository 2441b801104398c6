"""A stand-in for vLLM that shows what a warm agent does for it, and a probe that reports it from a child."""

from __future__ import annotations

from pathlib import Path

VLLM = {
    "__init__.py": "__version__ = '0.8.5'",
    "envs.py": "environment_variables = {}",
    "platforms/__init__.py": "resolve_current_platform_cls_qualname = None",
    "engine/__init__.py": "from vllm import client",
    "client.py": "import os\nPATIENCE = os.getenv('VLLM_PATIENCE', '10')",
    "engine/arg_utils.py": "class EngineArgs: _is_v1_supported_oracle = None",
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
PROBE = """
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


def install(python: Path) -> None:
    """Write the stand-in into the environment of the interpreter ``python``."""
    site = next((python.parent.parent / "lib").glob("python3.*/site-packages"))
    for name, text in VLLM.items():
        file = site / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
