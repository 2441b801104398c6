"""A directory put on the PYTHONPATH of target interpreters: it holds the agent package and its
entry points."""
