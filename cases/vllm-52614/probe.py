"""Inspect lm-format-enforcer's vLLM integration. Runs in the target interpreter."""


def is_importable():
    import lmformatenforcer

    return hasattr(lmformatenforcer, "JsonSchemaParser")


def integration_names():
    import lmformatenforcer.integrations.vllm as integration

    return [name for name in dir(integration) if not name.startswith("_")]
