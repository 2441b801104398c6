"""The kinds of checkpoints there are, by the name that a test gives as ``model``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from ..errors import UsageError
from . import bert, experts, llama, mamba, mistral, qwen, sentencepiece, whisper
from .shapes import Kind
from .tokenizers import byte_level

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "text": Kind("Qwen2ForCausalLM", qwen.text_config, qwen.text_weights, byte_level, qwen.generation),
        "vision": Kind(
            *("Qwen2_5_VLForConditionalGeneration", qwen.vision_config, qwen.vision_weights),
            *(functools.partial(byte_level, vision=True), qwen.vision_files),
            needs="torchvision",  # its processor comes with it
        ),
        "classifier": Kind(
            *("Qwen2ForSequenceClassification", qwen.classifier_config, qwen.classifier_weights),
            *(byte_level, qwen.generation),
        ),
        "encoder": Kind("BertModel", bert.encoder_config, bert.encoder_weights, bert.wordpiece, bert.nothing_beside),
        "reranker": Kind(
            *("BertForSequenceClassification", bert.reranker_config, bert.reranker_weights),
            *(bert.wordpiece, bert.nothing_beside),
        ),
        "sentencepiece": Kind("LlamaForCausalLM", llama.config, llama.weights, sentencepiece.fast, qwen.generation),
        "slow-tokenizer": Kind(
            *("LlamaForCausalLM", llama.config, llama.weights, sentencepiece.slow, qwen.generation),
            needs="sentencepiece",
        ),
        "mistral": Kind(
            *("MistralForCausalLM", mistral.config, llama.weights, mistral.tekken, qwen.generation),
            arguments={"tokenizer_mode": "mistral"},
        ),
        "experts": Kind("Qwen2MoeForCausalLM", experts.config, experts.weights, byte_level, qwen.generation),
        "mamba": Kind("MambaForCausalLM", mamba.config, mamba.weights, byte_level, qwen.generation),
        "speech": Kind(
            *("WhisperForConditionalGeneration", whisper.config, whisper.weights, whisper.words, whisper.beside)
        ),
        "draft": Kind(
            *("Qwen2ForCausalLM", qwen.draft_config, qwen.text_weights, byte_level, qwen.generation),
            keeps=qwen.in_draft,
        ),
    }
)


def kind_named(name: str) -> Kind:
    """The kind of this name. Raises ``UsageError`` naming those there are."""
    if name not in KINDS:
        raise UsageError(
            f"no forged model is called {name!r}; there are {', '.join(KINDS)}. A real one is named by --vllm-model"
        )
    return KINDS[name]


def needed_by(model: str) -> str | None:
    """The package that a target must have beside vLLM for this kind; None for anything else than a kind."""
    return KINDS[model].needs if model in KINDS else None


def arguments_of(model: str) -> Mapping[str, str]:
    """The engine arguments without which this kind does not start, unless a spec says otherwise."""
    return KINDS[model].arguments if model in KINDS else {}
