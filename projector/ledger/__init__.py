"""Positions, checkpoints and generations, as Redis stores them."""
