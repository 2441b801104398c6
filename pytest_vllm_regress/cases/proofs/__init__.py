"""Proofs of cases: what is stored, when it is out of date, impostors, and checks of the text."""
