"""The next generation: replayed, promoted, dropped."""
