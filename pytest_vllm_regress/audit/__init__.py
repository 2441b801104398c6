"""Which documented failures an installation has, known from its versions alone."""
