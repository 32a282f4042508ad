"""Which API keys are valid, as a worker has seen it, and how many unknown ones a client may try."""
