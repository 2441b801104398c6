from . import SamplingParams  # noqa: F401
