"""The workers that take part in a job, one by one, and whether what they say of their data agrees."""
