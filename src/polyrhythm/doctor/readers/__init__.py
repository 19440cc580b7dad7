"""Readers of traces, one format each; what they give is evidence, or a trace of operations."""
