"""What both processes need to be observable: structured logs and the server of the metrics port."""
