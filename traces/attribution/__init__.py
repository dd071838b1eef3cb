"""Outcomes of turns, and who is responsible for those that failed."""
