"""What each vLLM calls the death of its engine: the one place that knows these names."""

ENGINE_DEATHS = frozenset(
    {"AsyncEngineDeadError", "MQEngineDeadError", "EngineDeadError", "RayActorError", "ActorDiedError"}
)
"""What vLLM (V0, V0 behind processes, V1) and Ray call the death of an engine. Not ``EngineGenerationError``: V1 goes on after it."""


def says_engine_died(error: BaseException) -> bool:
    """The exception is one by which vLLM says that its engine is dead."""
    return any(each.__name__ in ENGINE_DEATHS for each in type(error).__mro__)
