"""Compares what Redis holds with the topics, or one generation with another."""
