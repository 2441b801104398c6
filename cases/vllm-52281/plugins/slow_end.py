import time

from vllm.v1.core.sched.scheduler import Scheduler

CLEAN_UP_S = 2


class SlowEnd(Scheduler):
    """Takes as long for its clean-up as a KV connector or a large model would, and logs its begin and end."""

    def shutdown(self):
        print("scheduler: clean-up begins", flush=True)
        time.sleep(CLEAN_UP_S)
        super().shutdown()
        print("scheduler: clean-up complete", flush=True)
