"""The commands that verify: how differences are told, their causes, and the verification that never ends."""
