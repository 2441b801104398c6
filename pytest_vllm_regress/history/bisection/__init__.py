"""Find the releases or commits at which a documented failure appeared or disappeared."""
