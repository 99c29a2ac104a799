"""Counterfactual branching of agent runs: rewind a journal, fork it, and compare what happens."""

__version__ = "0.1.0"
