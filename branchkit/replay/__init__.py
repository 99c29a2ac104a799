"""Replay: the real harness code over the journal, with the world stubbed."""
