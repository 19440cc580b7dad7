"""RLP: its figures and table 1, run again."""
