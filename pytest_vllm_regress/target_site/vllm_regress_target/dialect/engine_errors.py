"""The exceptions by which each vLLM reports that its engine has died."""

ENGINE_DEATH_ERRORS = frozenset(
    {
        "AsyncEngineDeadError",
        "MQEngineDeadError",
        "EngineDeadError",
        "RayActorError",
        "ActorDiedError",
    }
)
"""Class names used by vLLM (V0, V0 with an engine process of its own, V1) and by Ray.

V1 survives an ``EngineGenerationError``, so it is not one.
"""


def is_engine_death(error: BaseException) -> bool:
    """Return whether vLLM or Ray reports a dead engine by ``error``."""
    return any(cls.__name__ in ENGINE_DEATH_ERRORS for cls in type(error).__mro__)
