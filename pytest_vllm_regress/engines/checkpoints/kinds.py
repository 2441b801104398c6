"""The kinds of checkpoints, by the names that tests use as ``model``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from packaging.requirements import Requirement

from ...errors import UsageError
from . import sentencepiece
from .models import audio, bert, experts, llama, mamba, mistral, qwen, whisper
from .shapes import CheckpointKind
from .tokenizers import byte_level

KINDS: Mapping[str, CheckpointKind] = MappingProxyType(
    {
        "text": CheckpointKind(
            "Qwen2ForCausalLM", qwen.text_config, qwen.text_weights, byte_level, qwen.generation
        ),
        "vision": CheckpointKind(
            *("Qwen2_5_VLForConditionalGeneration", qwen.vision_config, qwen.vision_weights),
            *(functools.partial(byte_level, vision=True), qwen.vision_files),
            needs=(
                "torchvision",
                "transformers>=4.49",
            ),  # the image processor is part of torchvision
        ),
        "classifier": CheckpointKind(
            *("Qwen2ForSequenceClassification", qwen.classifier_config, qwen.classifier_weights),
            *(byte_level, qwen.generation),
        ),
        "encoder": CheckpointKind(
            "BertModel",
            bert.encoder_config,
            bert.encoder_weights,
            bert.wordpiece,
            bert.no_documents,
        ),
        "reranker": CheckpointKind(
            *("BertForSequenceClassification", bert.reranker_config, bert.reranker_weights),
            *(bert.wordpiece, bert.no_documents),
        ),
        "sentencepiece": CheckpointKind(
            "LlamaForCausalLM", llama.config, llama.weights, sentencepiece.fast, qwen.generation
        ),
        "slow-tokenizer": CheckpointKind(
            *("LlamaForCausalLM", llama.config, llama.weights, sentencepiece.slow, qwen.generation),
            needs=("sentencepiece",),
        ),
        "mistral": CheckpointKind(
            *("MistralForCausalLM", mistral.config, llama.weights, mistral.tekken, qwen.generation),
            arguments={"tokenizer_mode": "mistral"},
        ),
        "experts": CheckpointKind(
            "Qwen2MoeForCausalLM", experts.config, experts.weights, byte_level, qwen.generation
        ),
        "mamba": CheckpointKind(
            "MambaForCausalLM", mamba.config, mamba.weights, byte_level, qwen.generation
        ),
        "speech": CheckpointKind(
            *(
                "WhisperForConditionalGeneration",
                whisper.config,
                whisper.weights,
                whisper.tokenizer,
                whisper.documents,
            )
        ),
        "audio": CheckpointKind(
            *(
                "Qwen2AudioForConditionalGeneration",
                audio.config,
                audio.weights,
                audio.tokenizer,
                audio.documents,
            )
        ),
        "draft": CheckpointKind(
            *(
                "Qwen2ForCausalLM",
                qwen.draft_config,
                qwen.text_weights,
                byte_level,
                qwen.generation,
            ),
            keeps=qwen.in_draft,
        ),
    }
)


def kind_named(name: str) -> CheckpointKind:
    """Return the kind of this name. Raises ``UsageError`` with all names for an unknown one."""
    if name not in KINDS:
        raise UsageError(
            f"no forged model is called {name!r}; there are {', '.join(KINDS)}. Use --vllm-model for a real model"
        )
    return KINDS[name]


def unmet_needs(model: str, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a target with these versions lacks for this kind of model, as requirements.

    Models that are not kinds need nothing.
    """
    requirements = map(Requirement, KINDS[model].needs if model in KINDS else ())
    return tuple(
        str(requirement)
        for requirement in requirements
        if requirement.name not in versions
        or not requirement.specifier.contains(versions[requirement.name], prereleases=True)
    )


def arguments_of(model: str) -> Mapping[str, str]:
    """Return the engine arguments that this kind needs to start; a spec may override them."""
    return KINDS[model].arguments if model in KINDS else {}
