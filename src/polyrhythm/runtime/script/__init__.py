"""A script that knows nothing of Polyrhythm as a worker of a job.

What it is for: a few methods of torch are replaced in place before the script starts (`patches`), so that every style
of import is served, and tell the `script` what it does. Each `training` begins with a **warm-up step**, which is made
as torch would make it, and watched: which loader the steps draw from, which optimizer makes them, how many mini-batches
one takes. From the next mini-batch on a session deals out the `data`.
What comes in: a command line, and what the script calls of torch.
What goes out: steps of a session; a line on stderr for what is adapted, and for what cannot be, a refusal with the
script's line.
It imports `wire`, `collectives`, `launch` and `worker`; never `server` or `coordinator`: a script is a worker like any
other.
"""
