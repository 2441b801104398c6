"""Run a batch in another process, on this or another machine.

``wire`` makes a request from a batch, and has requests and replies as JSON. ``client`` starts a
``guard``, which starts a worker that runs pytest. Each request and each reply is
encoded and decoded once; the processes in between forward the line.
"""
