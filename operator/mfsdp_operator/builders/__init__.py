"""Pure builders of what the operator makes: the config map, the service and the pods.

They import neither kopf nor a client: JSON in, JSON out. None of them is ever used to *compare* an
object with what it should be: meshes and policy engines change pods, and that is their right.
"""
