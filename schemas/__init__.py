"""The contracts of Leadview: change events, documents, API keys, settings, and the names and layouts in Redis.

Pure code. It imports nothing of ours, and both `projector` and `api` import it.
"""
