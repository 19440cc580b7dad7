"""Launch: start a job's processes, find a job that runs, and talk to it from outside.

What it is for: `polyrhythm run` with torchrun's flags (`torchrun`), on several hosts (`nodes`), inside Slurm,
Kubernetes or torchrun (`environments`), on a Ray cluster (`ray`); how a worker finds its job (`rendezvous`);
`polyrhythm ctl` (`control_client`).
What comes in: command lines, the environment, a job file.
What goes out: processes with their environment, and exit statuses.
It takes no part in training.
It imports `wire`, `core`, `policies` and `training`; never `server`, `collectives`, `coordinator`, `worker` or
`script`, which it starts as programs.
"""
