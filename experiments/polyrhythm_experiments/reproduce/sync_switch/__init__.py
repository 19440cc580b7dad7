"""Sync-Switch: its tables and figures, run again."""
