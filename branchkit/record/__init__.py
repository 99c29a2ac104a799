"""The record: what a run's events fold to, and what the model saw at each turn."""
