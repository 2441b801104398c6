"""Find the documented failures of an installation from its versions alone, without running
anything."""
