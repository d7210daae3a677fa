"""A GPU that is none."""
