"""What a release's health addresses say, and how its server ends, in each state that an operator
meets."""
