"""The work of a projector outside its lines: jobs, redrive, serving the first generation."""
