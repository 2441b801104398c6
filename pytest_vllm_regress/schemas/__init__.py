"""Hypothesis strategies for JSON schemas and for instances of a schema.

They do not use hypothesis-jsonschema, which draws instances only and fails on objects with current
Hypothesis releases.
"""

from .features import Distribution, distribution, features, sample
from .instances import (
    Invalid,
    invalid_instances,
    near_misses,
    valid_instances,
    validator,
)
from .profile import PROFILES, Budget, Dialect, Feature, Profile
from .strategies import json_schemas

__all__ = [
    "PROFILES",
    "Budget",
    "Dialect",
    "Distribution",
    "Feature",
    "Invalid",
    "Profile",
    "distribution",
    "features",
    "invalid_instances",
    "json_schemas",
    "near_misses",
    "sample",
    "valid_instances",
    "validator",
]
