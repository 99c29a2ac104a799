"""A tool-calling loop made of named, swappable components."""
