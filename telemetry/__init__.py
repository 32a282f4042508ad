"""What both processes need to be observed: structured logs and the server of the metrics port."""
