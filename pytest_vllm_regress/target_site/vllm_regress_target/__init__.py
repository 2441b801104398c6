"""Runs under the target interpreter (Python 3.9 and later): the agent, its children, the dialect and the simulated device."""
