"""The API: typed models of MegatronFSDPJob, from which crds/ is generated."""
