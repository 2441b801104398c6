"""What engines need while they run: warm agents, GPUs, ports."""
