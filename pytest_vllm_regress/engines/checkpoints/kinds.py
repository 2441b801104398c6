"""The kinds of checkpoints, by the names that tests use as ``model``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from packaging.requirements import Requirement

from ...errors import UsageError
from . import tokenizers
from .tokenizers import Tokenizer


@dataclass(frozen=True)
class CheckpointKind:
    """A kind of checkpoint: its tokenizer; its configuration and weights are in ``models.toml``.

    ``needs``: requirements (PEP 508) that the target must meet in addition to vLLM. ``arguments``:
    engine arguments that the kind needs.
    """

    tokenizer: Callable[[], Tokenizer]
    needs: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)


KINDS: Mapping[str, CheckpointKind] = MappingProxyType(
    {
        "text": CheckpointKind(tokenizers.byte_level),
        # The image processor is part of torchvision.
        "vision": CheckpointKind(tokenizers.vision, needs=("torchvision", "transformers>=4.49")),
        "classifier": CheckpointKind(tokenizers.byte_level),
        "encoder": CheckpointKind(tokenizers.words),
        "reranker": CheckpointKind(tokenizers.words),
        "sentencepiece": CheckpointKind(tokenizers.fast_pieces),
        "slow-tokenizer": CheckpointKind(tokenizers.slow_pieces, needs=("sentencepiece",)),
        "mistral": CheckpointKind(tokenizers.tekken, arguments={"tokenizer_mode": "mistral"}),
        "experts": CheckpointKind(tokenizers.byte_level),
        "mamba": CheckpointKind(tokenizers.byte_level),
        "speech": CheckpointKind(tokenizers.speech),
        "audio": CheckpointKind(tokenizers.audio),
        "draft": CheckpointKind(tokenizers.byte_level),
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
