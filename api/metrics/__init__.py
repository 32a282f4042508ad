"""The metrics of the API: counted by each worker, added up and exported by the main process."""
