"""What happened when: bisection to a release or commit, and the releases that are new."""
