"""The loop that projects: poll, map, write, checkpoint."""
