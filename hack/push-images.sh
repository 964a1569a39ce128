#!/usr/bin/env bash
# Build both images with the machine's container tool, push them to $MFSDP_REGISTRY and print their
# names, a line each: operator, trainer. For clusters other than the embedded one.
# $MFSDP_BASE_IMAGE replaces python:3.13-slim where Docker Hub is not reached; $CONTAINER_TOOL picks
# the tool.
set -euo pipefail
cd "$(dirname "$0")/.."

find_tool() {
    local tool
    for tool in ${CONTAINER_TOOL:-} docker podman buildah; do
        "$tool" info >/dev/null 2>&1 && { echo "$tool"; return; }
    done
    echo "images: none of docker, podman, buildah works here; install one or set CONTAINER_TOOL" >&2
    return 1
}

: "${MFSDP_REGISTRY:?set MFSDP_REGISTRY to a registry that your cluster pulls from, e.g. registry.example.com/team}"
tool=$(find_tool)
base=(${MFSDP_BASE_IMAGE:+--build-arg "BASE=$MFSDP_BASE_IMAGE"})
tag=$(git rev-parse --short=12 HEAD 2>/dev/null || echo dev)
[ -z "$(git status --porcelain 2>/dev/null)" ] || tag=$tag-$(git diff HEAD | sha256sum | cut -c1-8)
for target in operator trainer; do
    name=$MFSDP_REGISTRY/mfsdp/$target:$tag
    case $tool in
        *buildah) "$tool" build --layers --network host --target "$target" "${base[@]}" --tag "$name" . >&2 ;;
        *) DOCKER_BUILDKIT=1 "$tool" build --target "$target" "${base[@]}" --tag "$name" . >&2 ;;
    esac
    "$tool" push "$name" >&2
    echo "$name"
done
