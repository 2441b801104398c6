import time

try:
    from vllm.v1.core.sched.scheduler import Scheduler
except ImportError:  # vLLM 0.8.0 and 0.8.1
    from vllm.v1.core.scheduler import Scheduler


class SlowScheduler(Scheduler):
    """Delays each step, so that a request is still running when the signal arrives."""

    def schedule(self, *args, **kwargs):
        time.sleep(0.02)
        return super().schedule(*args, **kwargs)
