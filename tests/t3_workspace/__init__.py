"""Tests of branchkit.workspace."""
