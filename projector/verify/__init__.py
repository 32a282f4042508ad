"""Compares the documents in Redis with the topics, or those of one generation with another."""
