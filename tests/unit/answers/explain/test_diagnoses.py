"""The known causes: each recognizes its own examples, computes its numbers, and nothing else."""

from __future__ import annotations

import pytest

from pytest_vllm_regress.answers.explain.case_patterns import required_literals
from pytest_vllm_regress.answers.explain.diagnoses import diagnoses
from tests.unit.answers.explain.conftest import explained


def diagnosed(text: str) -> str | None:
    root = explained(text).failures.root
    return root.diagnosed.name if root and root.diagnosed else None


@pytest.mark.parametrize("name", diagnoses())
def test_a_diagnosis_recognizes_its_examples_and_no_others(name: str) -> None:
    diagnosis = diagnoses()[name]
    for text in diagnosis.match:
        assert diagnosed(text) == name, text
    for text in diagnosis.other:
        assert diagnosed(text) != name, text


@pytest.mark.parametrize(
    ("message", "step"),
    [
        (
            "To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache "
            "is needed, which is larger than the available KV cache memory (3.20 GiB).",
            "--max-model-len 26208 fits",
        ),
        (
            "The model's max seq len (131072) is larger than the maximum number of tokens that can "
            "be stored in KV cache (40960).",
            "--max-model-len 40960 fits",
        ),
        (
            "Free memory on device (12.5/79.1 GiB) on startup is less than desired GPU memory",
            "--gpu-memory-utilization 0.15 fits",
        ),
        ("LoRA rank 64 is greater than max_lora_rank 16.", "--max-lora-rank 64"),
    ],
)
def test_numbers_are_computed_from_the_message(message: str, step: str) -> None:
    root = explained(f"ValueError: {message}\n").failures.root
    assert root is not None and root.diagnosed is not None
    assert any(step in text for text in root.diagnosed.do)


def test_a_documented_failure_is_not_claimed_after_another_root_cause() -> None:
    assert diagnosed("ValueError: nothing that is known\n") is None


UNSUPPORTED = "ValueError: Model architectures ['{}'] are not supported for now.\n"
UNKNOWN = "vllm: error: unrecognized arguments: {}\n"


@pytest.mark.parametrize(
    ("version", "message", "step"),
    [
        ("0.9.2", UNSUPPORTED.format("GptOssForCausalLM"), 'pip install "vllm>=0.10.1"'),
        ("0.10.1.dev34+g5bfe0dea7", UNSUPPORTED.format("GptOssForCausalLM"), '"vllm>=0.10.1"'),
        ("0.33.0", UNSUPPORTED.format("ZebraForCausalLM"), "No release up to "),
        ("0.8.4", UNKNOWN.format("--async-scheduling"), 'pip install "vllm>=0.10.0"'),
        ("0.33.0", UNKNOWN.format("--swap-space 4"), "--swap-space was removed in "),
        ("0.8.4", UNKNOWN.format("--max-model-length"), "Perhaps --max-model-len is meant"),
        (
            "0.8.4",
            "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'async_scheduling'\n",
            'pip install "vllm>=0.10.0"',
        ),
    ],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_the_first_release_that_has_it_is_named(
    version: str, message: str, step: str, is_late: bool
) -> None:
    named = f"vllm=={version}\n"
    root = explained(message + named if is_late else named + message).failures.root
    assert root is not None and root.diagnosed is not None
    assert step in root.diagnosed.do[0]


def test_no_release_is_named_for_what_the_installed_one_has() -> None:
    root = explained("vllm==0.8.4\n" + UNSUPPORTED.format("LlamaForCausalLM")).failures.root
    assert root is not None and root.diagnosed is not None
    assert not any("LlamaForCausalLM" in step for step in root.diagnosed.do)


@pytest.mark.parametrize("name", diagnoses())
def test_a_part_of_a_known_text_is_read_without_what_is_missing(name: str) -> None:
    """Regression: "unrecognized arguments: x" without an option ended in a KeyError."""
    diagnosis = diagnoses()[name]
    for pattern in (*diagnosis.seen, *diagnosis.lines):
        for literal in required_literals(pattern):
            root = explained(f"ValueError: {literal} {literal}\n").failures.root
            if root and root.diagnosed:
                assert "{" not in root.diagnosed.cause
