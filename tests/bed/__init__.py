"""The bed: a real Kubernetes cluster on one Linux machine, for the demo and the tests.

Everything runs from binaries that are built from Go modules (``go/``) and from Debian packages;
there is no container engine below it. The control plane runs in the machine's own network
namespace, every node (kubelet, kube-proxy, containerd) in one of its own, and all of it ends with
``down``. Only the standard library is used: the bed must start before any virtual environment
exists.
"""
