"""What lets a run go on: how often to checkpoint, what to settle, how to resume."""
