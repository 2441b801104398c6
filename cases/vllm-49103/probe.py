"""Import the server. Runs in the target interpreter."""


def openai_version():
    """Return the version of openai, which can be imported."""
    import openai

    return openai.__version__


def import_server():
    """Import what `vllm serve` imports, and return the module's name."""
    from vllm.entrypoints.openai import api_server

    return api_server.__name__
