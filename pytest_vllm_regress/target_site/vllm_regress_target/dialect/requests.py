"""Parameters of requests, as classes of the installed vLLM."""

from typing import Any, Dict, Optional

from . import known
from .installed import version


def sampling_params(values: Dict[str, Any], output_kind: Optional[str] = None) -> Any:
    """Return SamplingParams. ``structured_outputs`` is translated into what this vLLM takes."""
    from vllm import SamplingParams
    from vllm import sampling_params as module

    arguments = dict(values)
    if "logit_bias" in arguments:
        arguments["logit_bias"] = {
            int(token): bias for token, bias in arguments["logit_bias"].items()
        }  # JSON keys are strings
    structured = arguments.pop("structured_outputs", None)
    if structured is not None:
        if hasattr(module, "StructuredOutputsParams"):
            arguments["structured_outputs"] = module.StructuredOutputsParams(**structured)
        elif hasattr(module, "GuidedDecodingParams"):
            arguments["guided_decoding"] = module.GuidedDecodingParams(**structured)
        else:
            raise known.missing_feature("structured outputs in SamplingParams", version())
    if output_kind is not None:
        kinds = getattr(module, "RequestOutputKind", None)
        if kinds is None:
            raise known.missing_feature("RequestOutputKind", version())
        arguments["output_kind"] = kinds[output_kind.upper()]
    return SamplingParams(**arguments)


def beam_search_params(values: Dict[str, Any]) -> Any:
    """Return BeamSearchParams."""
    from vllm.sampling_params import BeamSearchParams

    return BeamSearchParams(**values)


def adapter(values: Dict[str, Any]) -> Any:
    """Return vLLM's LoRARequest for an adapter given by name, number and path."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(
        lora_name=values["name"], lora_int_id=values["number"], lora_path=values["path"]
    )
