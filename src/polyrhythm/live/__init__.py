"""See a job while it runs: the page with its controls, the terminal, metrics, files.

A process beside the job asks the coordinator how it is (`reader`); `model` and `history` make of two answers what is
shown, without clocks, sockets or files. `app` is the page, `screen` the terminal, `metrics` what Prometheus reads.
"""
