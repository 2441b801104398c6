"""What a request asks for, in the words of the installed vLLM."""

from typing import Any, Dict, Optional

from . import known
from .engines import version


def sampling_params(given: Dict[str, Any], output_kind: Optional[str] = None) -> Any:
    """SamplingParams from a dictionary; ``structured_outputs`` there is worded as this vLLM wants it."""
    from vllm import SamplingParams
    from vllm import sampling_params as module

    arguments = dict(given)
    if "logit_bias" in arguments:
        arguments["logit_bias"] = {
            int(token): bias for token, bias in arguments["logit_bias"].items()
        }  # JSON's keys are text
    structured = arguments.pop("structured_outputs", None)
    if structured is not None:
        if hasattr(module, "StructuredOutputsParams"):
            arguments["structured_outputs"] = module.StructuredOutputsParams(**structured)
        elif hasattr(module, "GuidedDecodingParams"):
            arguments["guided_decoding"] = module.GuidedDecodingParams(**structured)
        else:
            raise known.without("structured outputs in SamplingParams", version())
    if output_kind is not None:
        kinds = getattr(module, "RequestOutputKind", None)
        if kinds is None:
            raise known.without("RequestOutputKind", version())
        arguments["output_kind"] = kinds[output_kind.upper()]
    return SamplingParams(**arguments)


def beam_search_params(given: Dict[str, Any]) -> Any:
    """BeamSearchParams from a dictionary."""
    from vllm.sampling_params import BeamSearchParams

    return BeamSearchParams(**given)


def adapter(given: Dict[str, Any]) -> Any:
    """vLLM's LoRARequest of an adapter: name, number and path."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=given["name"], lora_int_id=given["number"], lora_path=given["path"])
