"""Which requests are made: valid ones, the fields that a server describes, and the values that they
are set to."""
