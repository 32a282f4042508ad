"""The specifications in `docs/model`, checked by TLC, the model checker of TLA+."""
