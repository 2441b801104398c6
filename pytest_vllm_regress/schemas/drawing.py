"""Draw examples from a Hypothesis strategy by a seed, without running a test.

The draws depend on the seed alone. Hypothesis mixes constants from the source code of imported
local modules into the integers and texts it draws, so the same seed draws other examples in another
project or working directory. The backend here uses only Hypothesis's built-in constants.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def draw_all(strategy: SearchStrategy[T], count: int, seed_value: int) -> list[T]:
    """Return what ``count`` examples draw, also twice the same.

    The same seed draws the same values on every machine with the same release of Hypothesis.
    """
    values: list[T] = []

    @seed(seed_value)
    @settings(
        backend=backend(),
        max_examples=max(1, count),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def note(value: T) -> None:
        values.append(value)

    note()
    return values


BACKEND = "vllm-regress"


@functools.cache
def backend() -> str:
    """Return the name for ``settings(backend=...)``:

    Hypothesis's default backend if this release has no such constants.
    """
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
    constants_by_key: dict[Any, list[Any]] = {}

    class SeedOnlyProvider(providers.HypothesisProvider):
        def _maybe_draw_constant(
            self, choice_type: Any, constraints: Any, *, p: float = 0.05
        ) -> Any:
            if self._random is None or self._random.random() > p:
                return None
            key = (choice_type, choice_constraints_key(choice_type, constraints))
            if key not in constants_by_key:
                constants = providers.GLOBAL_CONSTANTS.set_for_type(choice_type)
                constants_by_key[key] = [
                    constant for constant in constants if choice_permitted(constant, constraints)
                ]
            return self._random.choice(constants_by_key[key]) if constants_by_key[key] else None

    return SeedOnlyProvider


def __getattr__(name: str) -> Any:
    """Create the provider class when Hypothesis looks it up by name, so that its base class is not
    imported earlier."""
    if name == "Provider":
        return _provider()
    raise AttributeError(name)
