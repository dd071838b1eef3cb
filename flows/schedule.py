"""Runs the flows of a home on a schedule: ingest with attribution, upkeep, the whole cycle."""
