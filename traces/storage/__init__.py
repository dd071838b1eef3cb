"""The lake: its tables, where it lies, who may write, and its upkeep."""
