# Two images from one file: `operator` (the controller) and `trainer` (what runs in the pods).
#
#   docker build --target operator -t REGISTRY/mfsdp/operator .
#   docker build --target trainer  -t REGISTRY/mfsdp/trainer  .
#
# Dependencies lie in a layer below the code: a change of code rebuilds and pushes a few hundred KB.
# Both run as user 65532 and need nothing writable but /tmp.
ARG BASE=docker.io/library/python:3.13-slim

FROM ${BASE} AS base
# uv installs from the pinned, hashed lists; it does not stay in the images.
ENV PATH=/opt/mfsdp/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

FROM base AS uv
# The system's certificates, so that a company's own CA that is mounted or added here is trusted.
ENV UV_SYSTEM_CERTS=true
COPY requirements/uv.txt requirements/build.txt /requirements/
RUN python3 -m venv /opt/uv \
    && /opt/uv/bin/python -m pip install --no-cache-dir --require-hashes -r /requirements/uv.txt \
    && /opt/uv/bin/uv pip install --no-cache --python /opt/uv --require-hashes -r /requirements/build.txt

FROM uv AS wheel
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY trainer /src/trainer
RUN /opt/uv/bin/uv build --wheel --no-build-isolation --python /opt/uv --out-dir /wheels /src

# --- operator ---
FROM base AS operator-deps
COPY requirements/operator.txt /requirements/
RUN --mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv \
    --mount=type=cache,target=/root/.cache/uv \
    python3 -m venv --without-pip /opt/mfsdp \
    && /opt/uv/bin/uv pip sync --system-certs --link-mode copy \
        --python /opt/mfsdp --compile-bytecode --require-hashes /requirements/operator.txt

FROM operator-deps AS operator
RUN --mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/uv/bin/uv pip install --no-cache --python /opt/mfsdp --compile-bytecode --no-deps /wheels/*.whl
USER 65532:65532
ENTRYPOINT ["mfsdp-operator"]

# --- trainer ---
FROM base AS trainer-deps
COPY requirements/trainer.txt /requirements/
RUN --mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv \
    --mount=type=cache,target=/root/.cache/uv \
    python3 -m venv --without-pip /opt/mfsdp \
    && /opt/uv/bin/uv pip sync --system-certs --link-mode copy \
        --python /opt/mfsdp --compile-bytecode --require-hashes /requirements/trainer.txt

FROM trainer-deps AS trainer
RUN --mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv \
    --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/uv/bin/uv pip install --no-cache --python /opt/mfsdp --compile-bytecode --no-deps /wheels/*.whl
USER 65532:65532
ENTRYPOINT ["mfsdp-train"]
