"""PID 1 of a trainer pod: starts the workers, watches them, serves their progress, tells why it
ended.

    cli -> supervisor -> workers -> worker processes (python -m mfsdp_trainer.worker)
                      -> stop, hang, reaper     what ends or cleans up a run
                      -> server -> metrics      /progress, /metrics, /healthz
                      -> outcome                files and exit codes -> one reason

Workers and PID 1 share a directory (`rundir`), never a pipe or a lock: a worker that burns its CPU
or hangs cannot hold up a signal or an answer. Nothing here imports torch.
"""
