"""Fakes that are product, for tests of your own harness: ``model_server`` speaks real HTTP."""
