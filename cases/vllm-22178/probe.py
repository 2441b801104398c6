"""Import vLLM's own model configurations. Runs in the target interpreter."""

from importlib.util import find_spec
from pathlib import Path


def has_ovis():
    """Return whether this vLLM has a configuration for Ovis, without importing it."""
    package = Path(find_spec("vllm").origin).parent
    return (package / "transformers_utils" / "configs" / "ovis.py").is_file()


def configurations():
    """Import vLLM as a user does, and return the names of its configurations."""
    from vllm import EngineArgs
    from vllm.transformers_utils import configs

    assert EngineArgs
    return sorted(configs.__all__)
