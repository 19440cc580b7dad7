"""Runs a script that knows nothing of Polyrhythm as a worker of a job.

A few methods of torch are replaced in place before the script starts, so every style of import is served:
DistributedDataParallel's constructor, DataLoader's iteration, the process group's setup, and a hook on optimizers. The
script's first step, the **warm-up step**, is made as torch would make it, and watched: which loader the steps draw
from, which optimizer makes them, how many mini-batches one takes. From the next mini-batch on a session deals out the
data.

What is adapted is said in one line each; what cannot be is refused with the script's line.
It imports `wire`, `collectives`, `launch` and `worker`; never `server` or `coordinator`: a script is a worker like any
other.
"""
