"""Can a documented failure show in a given deployment?

Decided from its configuration and from what the tests of the case need.
"""
