"""The contracts of Leadview: change events, documents, API keys, settings, and the names and layouts in Redis.

Pure code. It imports no other package of this project; both `projector` and `api` import it.
"""
