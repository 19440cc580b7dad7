"""TLS on the TCP connections between hosts: the job's own, not those of gloo, NCCL and torch's store."""
