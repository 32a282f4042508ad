"""How Leadview is deployed and released."""
