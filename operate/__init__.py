"""What operators call: the commands, the console, the rebuild and the verification."""
