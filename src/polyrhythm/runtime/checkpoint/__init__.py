"""Checkpoints of a whole job: what is kept, how it is written and verified, and how a job goes on from it."""
