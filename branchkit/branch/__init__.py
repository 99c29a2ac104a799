"""Counterfactual branches: one component swapped, everything before the fork for nothing."""
