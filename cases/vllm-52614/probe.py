"""What lm-format-enforcer offers to vLLM. Runs inside the target interpreter."""


def is_there():
    import lmformatenforcer

    return hasattr(lmformatenforcer, "JsonSchemaParser")


def offered_by_the_integration():
    import lmformatenforcer.integrations.vllm as integration

    return [name for name in dir(integration) if not name.startswith("_")]
