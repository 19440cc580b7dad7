"""Seeded scripts of faults, played against real jobs and against jobs in memory."""
