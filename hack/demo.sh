#!/usr/bin/env bash
# `make demo`: a MegatronFSDPJob, applied with kubectl, trained to the end by real pods.
#
# Uses the embedded cluster, or the one of KUBECONFIG. Then also read from the environment:
#   MFSDP_REGISTRY   where both images are built for and pushed to, or, instead of it,
#   MFSDP_IMAGES     two images that the cluster can pull already: "OPERATOR TRAINER"
#   STORAGE_CLASS    for the checkpoints, one that offers ReadWriteMany; unset: the cluster's default
# Made anew by each run: the namespace mfsdp-demo. Left in place: all of it, to look around.
set -euo pipefail
cd "$(dirname "$0")/.."

NAMESPACE=mfsdp-demo
SYSTEM_NAMESPACE=mfsdp-system
JOB=quickstart
CLAIM=quickstart-checkpoints
BED=(python3 tests/bed)
started=$SECONDS

say() { printf '\n\033[1m[%d:%02d] %s\033[0m\n' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "$*"; }
die() { echo "demo: $*" >&2; exit 1; }

use_cluster() {
    if [ -n "${KUBECONFIG:-}" ] && [[ $(kubectl config current-context) != mfsdp-bed* ]]; then
        embedded=false
        command -v helm >/dev/null || die "helm is not on PATH; install it (helm.sh) or unset KUBECONFIG"
        say "Cluster: yours ($(kubectl config current-context))"
        kubectl get --raw /readyz >/dev/null || die "the cluster of KUBECONFIG does not answer"
        [ -n "${MFSDP_REGISTRY:-}${MFSDP_IMAGES:-}" ] || die "set MFSDP_REGISTRY to a registry that" \
            "your cluster pulls from (both images are built and pushed), or MFSDP_IMAGES to two images"
        return
    fi
    embedded=true
    say "Cluster: the embedded one (built from source the first time, about 10 minutes on 2 cores)"
    "${BED[@]}" up
    eval "$("${BED[@]}" env)"
}

build_images() {
    if [ -n "${MFSDP_IMAGES:-}" ]; then
        read -ra images <<<"$MFSDP_IMAGES"
        [ ${#images[@]} -eq 2 ] || die "MFSDP_IMAGES must name two images: OPERATOR TRAINER"
        return
    fi
    say "Images (the first time the trainer's 6 GB of torch and CUDA libraries, about 5 minutes)"
    if $embedded; then
        mapfile -t images < <("${BED[@]}" images operator trainer)
    else
        mapfile -t images < <(hack/push-images.sh)
    fi
    [ ${#images[@]} -eq 2 ] || die "building the images failed (messages above)"
    printf '  %s\n' "${images[@]}"
}

install_operator() {
    say "Operator: helm upgrade --install mfsdp charts/mfsdp-operator"
    # The CRD may be there already, by kubectl (Helm takes it over since 3.17).
    local own=""
    helm upgrade --help | grep -q -- --take-ownership && own=--take-ownership
    helm upgrade --install mfsdp charts/mfsdp-operator --namespace "$SYSTEM_NAMESPACE" \
        --create-namespace --wait --timeout 5m --hide-notes $own \
        --set "image.ref=${images[0]}" --set "trainerImage=${images[1]}" \
        --set settings.progressInterval=5 >/dev/null
    kubectl get deployments -n "$SYSTEM_NAMESPACE"
}

remove_last_run() {
    kubectl delete namespace "$NAMESPACE" --ignore-not-found --wait --timeout=3m
    kubectl delete persistentvolume "$CLAIM" --ignore-not-found --wait --timeout=1m
}

# The embedded cluster has no storage provisioner: its volume is a folder of this machine, which
# both nodes see.
make_volume() {
    volume=${XDG_CACHE_HOME:-$HOME/.cache}/mfsdp/demo/$(date +%Y%m%d-%H%M%S)
    mkdir -p "$volume" && chmod 0777 "$volume"
    kubectl apply -f - <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: $CLAIM}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  hostPath: {path: $volume, type: Directory}
  claimRef: {namespace: $NAMESPACE, name: $CLAIM}
YAML
}

make_claim() {
    kubectl create namespace "$NAMESPACE"
    if $embedded; then
        make_volume
        STORAGE_CLASS=""
    fi
    claim=$(cat examples/quickstart-pvc.yaml)
    if [ -n "${STORAGE_CLASS+set}" ]; then
        claim=$(printf '%s\n  storageClassName: "%s"\n' "$claim" "$STORAGE_CLASS")
    fi
    kubectl apply -n "$NAMESPACE" -f - <<<"$claim"
}

train() {
    say "Job: kubectl apply -f examples/quickstart.yaml"
    kubectl apply -n "$NAMESPACE" -f examples/quickstart.yaml
    if ! .venv/bin/mfsdp watch "$JOB" -n "$NAMESPACE"; then
        kubectl describe -n "$NAMESPACE" mfj "$JOB" | sed -n '/^Status/,$p' >&2
        die "the job did not complete (its status is above)"
    fi
}

# Written by a pod of its own from the exported model alone, as any user of transformers would.
show_sample() {
    say "Sample, written by the exported model"
    kubectl delete pod -n "$NAMESPACE" sample --ignore-not-found --wait >/dev/null
    sed -e "s|IMAGE|${images[1]}|" -e "s|CLAIM|$CLAIM|" hack/sample-pod.yaml | kubectl apply -n "$NAMESPACE" -f - >/dev/null
    kubectl wait -n "$NAMESPACE" pod/sample --for=jsonpath='{.status.phase}'=Succeeded --timeout=3m >/dev/null \
        || die "the sample pod failed: kubectl logs -n $NAMESPACE sample"
    kubectl logs -n "$NAMESPACE" sample
}

show_results() {
    say "Done"
    kubectl get -n "$NAMESPACE" mfj "$JOB"
    echo
    echo "  checkpoints      claim $CLAIM, /step-*${volume:+    here: $volume}"
    echo "  exported model   claim $CLAIM, /export${volume:+    here: $volume/export}"
    echo
    echo "Look further:"
    ! $embedded || echo "  eval \"\$(python3 tests/bed env)\"        # this cluster's kubectl and KUBECONFIG"
    echo "  kubectl -n $NAMESPACE describe mfj $JOB"
    echo "  kubectl -n $NAMESPACE logs -l training.mfsdp.dev/job-name=$JOB --prefix --tail=20"
    echo "  kubectl -n $NAMESPACE get mfj,pods,svc,cm,pvc"
    echo
    if $embedded; then
        echo "Clean up: make cluster-down, then rm -r ${volume%/*}"
    else
        echo "Clean up: kubectl delete namespace $NAMESPACE; helm uninstall mfsdp -n $SYSTEM_NAMESPACE"
    fi
}

use_cluster
build_images
install_operator
remove_last_run
make_claim
train
show_sample
show_results
