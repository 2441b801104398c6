"""Inspect lm-format-enforcer's vLLM integration. Runs in the target interpreter."""


def is_importable():
    import lmformatenforcer

    return hasattr(lmformatenforcer, "JsonSchemaParser")


def integrate(model):
    """Return how many tokens the integration sees in the tokenizer of a model."""
    from lmformatenforcer.integrations.vllm import build_vllm_token_enforcer_tokenizer_data
    from transformers import AutoTokenizer

    return len(build_vllm_token_enforcer_tokenizer_data(AutoTokenizer.from_pretrained(model)).regular_tokens)
