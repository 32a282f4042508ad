"""What a projector does besides its lines: jobs, redrive, serving the first generation."""
