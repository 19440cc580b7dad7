"""Real processes that play a scenario: a coordinator and workers on this host, at the pace of emulated devices."""
