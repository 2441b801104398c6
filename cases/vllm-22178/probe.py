"""Import vLLM's own model configurations. Runs in the target interpreter."""

from importlib.util import find_spec
from pathlib import Path


def has_ovis():
    """Return whether this vLLM has a configuration for Ovis, without importing it."""
    package = Path(find_spec("vllm").origin).parent
    return (package / "transformers_utils" / "configs" / "ovis.py").is_file()


def configurations():
    """Return the names of the configurations, which the server and the engine import, too."""
    from vllm.transformers_utils import config, configs

    assert config
    return sorted(configs.__all__)
