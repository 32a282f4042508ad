"""The command `leadview`, through which an installed Leadview is used."""
