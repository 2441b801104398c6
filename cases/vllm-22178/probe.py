"""Import vLLM's own model configurations. Runs in the target interpreter."""


def configurations():
    """Return the names of the configurations, which the server and the engine import, too."""
    from vllm.transformers_utils import config, configs

    assert config
    return sorted(configs.__all__)
