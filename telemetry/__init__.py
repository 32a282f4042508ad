"""What both programs need: structured logs, the server of the metrics port, and children that end with their parent."""
