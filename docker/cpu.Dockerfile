# deploycnn on a CPU: trains, compiles and measures there, and builds TensorRT for RTX engines for a GPU elsewhere.
# docs/docker.md says how it is built and run.
ARG PYTHON=3.12
# Any image with glibc >= 2.28, apt, python${PYTHON} and its venv module.
ARG BASE_IMAGE=docker.io/library/python:${PYTHON}-slim-bookworm

# --- What builder and final image share: the compiler that TVM and TorchInductor call when they run, and the user.
FROM ${BASE_IMAGE} AS base
# The cache mounts keep the packages between builds; the base's own clean-up would empty them.
# hadolint ignore=DL3008,DL3009
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates g++ \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /deploycnn/cache --shell /usr/sbin/nologin deploycnn \
    # Volumes take owner and mode from here; 1777, so that `--user` with any other id can write to a new one too.
    && install --directory --owner=deploycnn --group=deploycnn --mode=1777 /deploycnn/data /deploycnn/cache /deploycnn/runs

# --- The virtual environment. What is slow is installed before the sources come in, and is not repeated when they change.
FROM base AS builder
ARG PYTHON
# Index with the CPU build of torch, without gigabytes of CUDA; empty: pip's default, whose x86-64 Linux build has CUDA.
ARG TORCH_INDEX=""
WORKDIR /build
COPY pyproject.toml constraints.txt docker/fits.py ./
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    { command -v "python${PYTHON}" || { echo "this image does not fit: its base has no python${PYTHON}" >&2; exit 1; }; } \
    && "python${PYTHON}" fits.py base --python "${PYTHON}" --constraints constraints.txt \
    && "python${PYTHON}" -m venv /opt/deploycnn \
    && /opt/deploycnn/bin/python fits.py requirements pyproject.toml openvino > requirements.txt \
    && /opt/deploycnn/bin/python -m pip install --constraint constraints.txt --requirement requirements.txt \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"}
COPY README.md LICENSE ./
COPY src src
COPY pipeline pipeline
COPY models models
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    /opt/deploycnn/bin/python -m pip install --no-deps .

# --- The image.
FROM base AS final
ARG TORCH_INDEX=""
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="deploycnn (CPU)" \
      org.opencontainers.image.description="Decide which compiled artifact of a CNN classifier to ship, with the proof" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /opt/deploycnn /opt/deploycnn
# Everything that is written goes to the volumes and /tmp: the root may be read-only. USER for ids that no passwd entry names.
ENV PATH=/opt/deploycnn/bin:${PATH} \
    DEPLOYCNN_CACHE=/deploycnn/cache \
    HOME=/deploycnn/cache \
    XDG_CACHE_HOME=/deploycnn/cache \
    USER=deploycnn \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /deploycnn
# Imports every compiler and prints doctor: what does not fit fails the build here, not a user's run.
RUN --mount=type=bind,source=docker/fits.py,target=/fits.py \
    python /fits.py installed --torch-index "${TORCH_INDEX}"
VOLUME ["/deploycnn/data", "/deploycnn/cache", "/deploycnn/runs"]
# Rare: a check takes seconds of CPU, and a measurement would feel it.
HEALTHCHECK --interval=1h --timeout=2m --retries=2 CMD ["deploycnn", "doctor"]
ENTRYPOINT ["deploycnn"]
CMD ["run"]
