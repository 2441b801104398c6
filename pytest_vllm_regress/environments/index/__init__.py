"""The user's package index: releases of a package, and what is in their wheels."""
