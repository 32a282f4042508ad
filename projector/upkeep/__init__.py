"""What a projector does besides its lines: jobs, redrive, the first generation."""
