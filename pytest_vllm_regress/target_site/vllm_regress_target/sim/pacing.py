"""What ``paced_scheduler.py`` and its users agree on.

They cannot import that module, because it imports vLLM.
"""

SCHEDULER = "vllm_regress_target.sim.paced_scheduler.PacedScheduler"
STEP_S = 0.05
STUCK_TOKENS = 77
"""A request for this number of tokens makes the scheduler wait forever."""
STUCK = "vllm-regress: the scheduler is stuck"
"""What the scheduler then prints."""
