"""Load a tokenizer in the ways of vLLM and transformers. Runs in the target interpreter."""


def with_transformers(path):
    """Return the token ids of a text, by transformers alone."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path).encode("Hello")


def with_vllm(path):
    """Return the token ids of the same text, by the tokenizer that vLLM loads."""
    try:
        from vllm.tokenizers import get_tokenizer
    except ImportError:
        from vllm.transformers_utils.tokenizer import get_tokenizer

    return get_tokenizer(path).encode("Hello")
