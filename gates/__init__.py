"""Verdicts from facts: objectives, validity, capacity."""
