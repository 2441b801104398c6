"""Jobs on a Ray cluster that is there: the extra ``[ray]``. Nothing here is imported without ``--on``."""
