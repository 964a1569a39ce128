"""The `mfsdp` command: check a job file, train it on this machine, watch it on a cluster."""
