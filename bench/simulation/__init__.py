"""A simulation of a large installation, to check the formula of `docs/capacity.md`."""
