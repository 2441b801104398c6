"""A scheduler that fails once it has got a request for 77 tokens."""

try:
    from vllm.v1.core.sched.scheduler import Scheduler
except ImportError:  # vLLM 0.8.0 and 0.8.1
    from vllm.v1.core.scheduler import Scheduler


class Failing(Scheduler):
    fails = False

    def add_request(self, request):
        self.fails = self.fails or request.max_tokens == 77
        super().add_request(request)

    def schedule(self, *args, **kwargs):
        if self.fails:
            raise RuntimeError("the scheduler of the test fails")
        return super().schedule(*args, **kwargs)
