"""Makes the plugin known when the checkout is not installed; everything else is in the package."""

from __future__ import annotations

import importlib.metadata

try:
    importlib.metadata.distribution("pytest-vllm-regress")
except importlib.metadata.PackageNotFoundError:
    pytest_plugins = ["pytest_vllm_regress.plugin"]
