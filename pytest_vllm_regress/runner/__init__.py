"""Run batches of cases, each with a pytest process of its own: one by one, side by side, or on a
Ray cluster.

Everything goes through ``run.run_batches(RunRequest(...))``:

``batch``               a batch, its outcome, and the protocol of executors
``plan``, ``shards``    which cases run in which environments; long batches are split
``executors``           build environments and run batches on this machine; ``ray_executor`` on a
                        cluster
``pytest_run``          the pytest process over one batch, and its report, read as it grows
``wire``, ``guard``     a batch as a request that another process or machine can run, its replies,
                        and the process that runs it
``journal``             what had finished when a run was interrupted; ``progress`` shows what
                        happens meanwhile

A batch whose machine fails (its Ray node dies, its disk is full, pytest is killed) is retried once,
on another node: ``ray_executor.retry_lost``.
"""
