"""What Leadview is measured beside: programs of their own, started by `bench.candidates`."""
