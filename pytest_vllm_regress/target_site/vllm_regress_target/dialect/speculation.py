"""Speculative decoding: vLLM's ``speculative_config``, which was several engine arguments up to
0.7, and how versions draft."""

import importlib.util
from typing import Any, Optional

from .. import Unsupported
from . import known
from .signatures import has_parameter

ARGUMENT = "speculative_config"
_FLAT = {
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "ngram_prompt_lookup_max",
    "prompt_lookup_min": "ngram_prompt_lookup_min",
}


def translate(config: dict[str, Any], spec: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """Return the engine arguments that mean ``config`` in this vLLM. Raises ``Unsupported``."""
    method = config.get("method", "draft_model")
    if spec["device"] == "sim" and method != "ngram":
        raise Unsupported(
            f"the simulated device drafts by n-grams only: {method!r} needs a network",
            device="sim",
        )
    if spec["generation"] == "V0" and importlib.util.find_spec("vllm.spec_decode") is None:
        raise known.missing_feature("speculative decoding in V0")
    if spec["generation"] == "V1" and importlib.util.find_spec("vllm.v1.spec_decode") is None:
        raise known.missing_feature("speculative decoding in V1")
    if ARGUMENT in fields:
        return {ARGUMENT: dict(config)}
    if "speculative_model" not in fields:
        raise known.missing_argument(ARGUMENT)
    options = {name: value for name, value in config.items() if name != "method"}
    if method == "ngram":
        options["model"] = "[ngram]"
    flat = {_FLAT.get(name, "speculative_" + name): value for name, value in options.items()}
    for name in flat:
        if name not in fields:
            raise known.missing_argument(name)
    return flat


def drafts_by_ngrams(config: Any) -> bool:
    """Return whether vLLM's speculative configuration drafts by n-grams."""
    method = getattr(config, "method", None)
    return method == "ngram" or (
        method is None and getattr(config, "ngram_prompt_lookup_max", 0) > 0
    )


def lookup_sizes(config: Any) -> tuple[Optional[int], Optional[int]]:
    """Return the fewest and the most tokens that the n-gram proposer looks up; the fields were
    renamed in 0.8.2."""
    smallest, largest = (
        getattr(config, f"prompt_lookup_{end}", getattr(config, f"ngram_prompt_lookup_{end}", None))
        for end in ("min", "max")
    )
    return smallest, largest


def disable_flash_attention_scorer(config: Any) -> None:
    """Make V0 score drafts by expanding the batch, because its other scorer needs FlashAttention."""
    for name in ("speculative_disable_mqa_scorer", "disable_mqa_scorer"):
        if hasattr(config, name):
            setattr(config, name, True)


def proposes_for_whole_batch(proposer: Any) -> bool:
    """Return whether V1's n-gram proposer takes the whole batch in one call instead of one request."""
    return not has_parameter(proposer.propose, "context_token_ids")


def undrafted_requests(rows: Any) -> set[str]:
    """Return the ids of the requests whose sampling parameters exclude drafts in this vLLM."""
    if hasattr(rows, "spec_decode_unsupported_reqs"):
        return set(rows.spec_decode_unsupported_reqs)
    try:
        from vllm.v1.spec_decode.utils import is_spec_decode_supported
    except ImportError:  # 0.7 excludes nothing, and the newest versions draft for every request
        return set()
    return {
        request_id for request_id in rows.req_ids if not is_spec_decode_supported(request_id, rows)
    }
