"""The differences between vLLM versions.

No other folder knows what a version calls an argument, a class or a field.
"""

from .installed import version

__all__ = ["version"]
