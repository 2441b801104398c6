"""Draws that depend on the seed alone.

Hypothesis mixes constants from the source of whatever modules of the user's are imported into integers and texts, so the same seed
draws other examples in another project, or another working directory. This backend takes its built-in constants and no others.
"""

from __future__ import annotations

import functools
from typing import Any

BACKEND = "vllm-regress"


@functools.cache
def backend() -> str:
    """The name for ``settings(backend=...)``; Hypothesis's own where its release has no such constants or other names for them."""
    try:
        from hypothesis.internal.conjecture import providers

        providers.AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.Provider"
        return BACKEND if _provider() is not providers.HypothesisProvider else "hypothesis"
    except (ImportError, AttributeError):
        return "hypothesis"


@functools.cache
def _provider() -> type[Any]:
    from hypothesis.internal.conjecture import providers
    from hypothesis.internal.conjecture.choice import choice_constraints_key, choice_permitted

    if not hasattr(providers.HypothesisProvider, "_maybe_draw_constant"):
        return providers.HypothesisProvider
    known: dict[Any, list[Any]] = {}

    class SeedAlone(providers.HypothesisProvider):
        def _maybe_draw_constant(self, choice_type: Any, constraints: Any, *, p: float = 0.05) -> Any:
            if self._random is None or self._random.random() > p:
                return None
            key = (choice_type, choice_constraints_key(choice_type, constraints))
            if key not in known:
                constants = providers.GLOBAL_CONSTANTS.set_for_type(choice_type)
                known[key] = [each for each in constants if choice_permitted(each, constraints)]
            return self._random.choice(known[key]) if known[key] else None

    return SeedAlone


def __getattr__(name: str) -> Any:
    """Hypothesis asks for the class by its name here; its base is not imported before that."""
    if name == "Provider":
        return _provider()
    raise AttributeError(name)
