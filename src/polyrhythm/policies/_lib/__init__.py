"""What several policies share: barriers, clocks, detectors, hand-overs; and how policies are found."""
