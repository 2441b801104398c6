"""Run batches of cases, each with a pytest process of its own: one by one, side by side, or on a
Ray cluster.

Everything goes through ``run.run_batches(RunRequest(...))``:

``plan``, ``shards``    which cases run in which environments, as ``batch.Batch`` values; long
batches are split
``executor``            the protocol of executors and the updates that they yield; ``executors/``
has the three of them
``pytest_run``          the pytest process over one batch, and its report, read as it grows
``unfinished``          INCONCLUSIVE results for cases that no test gave a result for
``remote/``             a batch as a request that another process or machine can run, and its
replies
``judge``               expectations, applied once, where the run was started
``journal``             what had finished when a run was interrupted; ``progress`` shows what
happens meanwhile

A batch whose machine fails (its Ray node dies, its disk is full, pytest is killed) is retried once,
on another node:
``executors.in_flight.retry_lost``.
"""
