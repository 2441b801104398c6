"""Executors: one batch after the other on our own terminal, side by side in threads, or on a Ray
cluster (the extra ``[ray]``)."""
