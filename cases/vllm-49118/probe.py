"""Abort a request that waits for free blocks. Runs in the target interpreter."""


def abort_while_waiting(llm, running, waiting):
    """Send two prompts, abort the second while the first has the blocks, and go on. Return what waited before the abort, and who finished."""
    engine = getattr(llm, "llm_engine", llm)
    scheduler = engine.engine_core.engine_core.scheduler
    _add(engine, "running", running)
    engine.step()
    _add(engine, "waiting", waiting)
    engine.step()
    waited = len(scheduler.waiting)
    _abort(engine, "waiting")
    finished = []
    for _ in range(200):
        if not engine.has_unfinished_requests():
            break
        finished += [output.request_id.split("-")[0] for output in engine.step() if output.finished]
    return {"waited": waited, "finished": sorted(finished)}


def _add(engine, request_id, prompt):
    from vllm import SamplingParams

    engine.add_request(request_id, prompt, SamplingParams(max_tokens=8, ignore_eos=True))


def _abort(engine, request_id):
    engine.abort_request([request_id])
