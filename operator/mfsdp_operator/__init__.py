"""The operator of MegatronFSDPJob, and the `mfsdp` command.

One direction only: handlers -> reconcile (pure) -> builders (pure) -> api types; `kube` alone
speaks
to the API server and `conditions` alone computes conditions.
"""
