"""What people read, and what generates parts of it."""
