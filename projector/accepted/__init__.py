"""Bad records that an operator has accepted: which ones, and where that is stored."""
