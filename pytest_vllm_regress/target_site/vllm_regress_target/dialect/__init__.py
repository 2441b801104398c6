"""What each vLLM calls things, one folder that knows its versions: engines and their arguments, the command line, requests."""

from .engines import version

__all__ = ["version"]
