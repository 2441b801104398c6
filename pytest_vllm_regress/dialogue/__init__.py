"""What is asked of a model and what it answers, as values: scripts of the simulated model, chat messages of any version."""
