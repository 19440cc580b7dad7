"""The parameter servers: the newest parameters, cut into shards that can be read and stepped.

What it is for: each shard holds a part of the model's flat vector and its optimizer (`shard`), keeps gradients of each
worker until somebody says what becomes of them (`shard_service`), and sums contributions of replicas
(`server_reduce`). `shard_group` is all shards of a job, those in processes of their own included.
What comes in: pushes, pulls, uploads and downloads of workers; `Apply`, `Drop` and `Forget` of the coordinator.
What goes out: parameters, and the word that a gradient has arrived.
It does not know why a gradient is applied: no policy and no membership.
It imports `wire` and `training`; never `coordinator`, `worker`, `collectives`, `launch` or `script`.
"""
