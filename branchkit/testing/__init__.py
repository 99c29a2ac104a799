"""Fakes that are product: the scripted model server and friends, for tests of your own harness."""
