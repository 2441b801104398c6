"""Speculative decoding, worded once: vLLM's ``speculative_config``, which was a handful of engine arguments up to 0.7."""

import importlib.util
from typing import Any, Dict, Set

from .. import Unsupported
from . import known
from .installed import version

ARGUMENT = "speculative_config"
_FLAT = {
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "ngram_prompt_lookup_max",
    "prompt_lookup_min": "ngram_prompt_lookup_min",
}


def worded(given: Dict[str, Any], spec: Dict[str, Any], fields: Set[str]) -> Dict[str, Any]:
    """The engine arguments that mean `given` here. Raises ``Unsupported``."""
    method = given.get("method", "draft_model")
    if spec["device"] == "sim" and method != "ngram":
        raise Unsupported(
            "the simulated device drafts by n-grams only: {!r} needs a network".format(method), device="sim"
        )
    if spec.get("generation") == "V0" and importlib.util.find_spec("vllm.spec_decode") is None:
        raise known.without("speculative decoding in V0", version())
    if ARGUMENT in fields:
        return {ARGUMENT: dict(given)}
    if "speculative_model" not in fields:
        raise known.lacks(ARGUMENT, version())
    asked = {name: value for name, value in given.items() if name != "method"}
    if method == "ngram":
        asked["model"] = "[ngram]"
    flat = {_FLAT.get(name, "speculative_" + name): value for name, value in asked.items()}
    for name in flat:
        if name not in fields:
            raise known.lacks(name, version())
    return flat
