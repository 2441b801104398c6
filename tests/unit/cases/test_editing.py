"""Edits of case files."""

from __future__ import annotations

from pytest_vllm_regress.cases.editing import with_fixed_evidence, with_range
from pytest_vllm_regress.cases.model import Range

TEXT = """# a case
[affected]
"vllm" = ">=0.7" # from the start
LM_format.enforcer = '<0.11'

[evidence]
affected = ["vllm-0.33.0"]
fixed = [] # not yet
"""


def test_only_the_specifier_changes() -> None:
    changed = with_range(TEXT, Range("vllm", ">=0.7,<0.34"))
    assert changed == TEXT.replace('">=0.7"', '">=0.7,<0.34"')


def test_a_package_is_found_under_any_spelling_of_its_name() -> None:
    text = TEXT.replace("LM_format.enforcer", '"LM_format.enforcer"')
    assert with_range(text, Range("lm-format-enforcer", "<0.12")) == text.replace("'<0.11'", '"<0.12"')


def test_only_the_list_of_environments_changes() -> None:
    assert with_fixed_evidence(TEXT, "vllm-0.34.0") == TEXT.replace("fixed = []", 'fixed = ["vllm-0.34.0"]')
