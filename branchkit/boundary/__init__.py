"""The boundary: the only door between a harness and the world."""
