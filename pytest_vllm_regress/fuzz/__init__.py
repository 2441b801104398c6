"""Hunters: searches for failures that nobody has reported, by drawn questions.

``hunter.py`` says what a hunter is, ``campaign.py`` runs one, ``reduce.py`` makes findings small,
``finding.py`` makes them files. The folders hold what is special about each of the five hunters.
"""
