"""What the API measures of itself: counted by each worker, added up and exported by the main process."""
