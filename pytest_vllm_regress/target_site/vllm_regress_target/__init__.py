"""Runs under the target interpreter (Python 3.9 and later): the agent, its children, the dialect and the simulated device."""


class Unsupported(Exception):
    """The installed vLLM, or the device, does not have what is asked for. A probe may raise it too; the test is then skipped."""
