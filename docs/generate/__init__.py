"""Writes what is generated of the documentation: `python -m docs.generate`. Nothing of it runs in production."""
