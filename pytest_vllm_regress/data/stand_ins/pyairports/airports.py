"""Stands in for pyairports, whose package on the index is empty today; outlines 0.0.46 imports this
one name."""

AIRPORT_LIST: list[str] = []
