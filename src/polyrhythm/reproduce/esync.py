"""ESync (Li, Zhou and Yu): two slow and four fast devices that meet when the slowest has done one step."""

from polyrhythm.reproduce.lab import Lab
from polyrhythm.reproduce.page import Page

SOURCE = (
    "Li, Zhou, Yu: *ESync: An Efficient Synchronous Parallel Algorithm for Distributed ML in Heterogeneous Clusters*."
)


def page(lab: Lab) -> Page:
    """The page."""
    return Page("esync", "ESync", SOURCE, {}, [])
