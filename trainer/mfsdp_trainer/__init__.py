"""The trainer: what runs in the pods of a MegatronFSDPJob, and by hand with `mfsdp-train`."""
