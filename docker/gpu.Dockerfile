# deploycnn on an NVIDIA GPU: trains, compiles and measures with CUDA. docs/docker.md says how it is built and run.
# CUDA's major must be that of the pinned wheels (torch, onnxruntime-gpu, TensorRT); the build checks it before it installs them.
ARG CUDA=13.0.3
ARG PYTHON=3.12
# Any image with glibc >= 2.36 (the Python below), apt, and CUDA_VERSION in its environment.
ARG BASE_IMAGE=docker.io/nvidia/cuda:${CUDA}-runtime-ubuntu24.04
# Its /usr/local is laid over the base's: Ubuntu 24.04 itself has Python 3.12 only.
ARG PYTHON_IMAGE=docker.io/library/python:${PYTHON}-slim-bookworm

FROM ${PYTHON_IMAGE} AS python

# --- What builder and final image share: Python and its libraries, the compiler that TVM and Triton call when they run, the user.
FROM ${BASE_IMAGE} AS base
COPY --from=python /usr/local/ /usr/local/
# The cache mounts keep the packages between builds; the base's own clean-up would empty them.
# hadolint ignore=DL3008,DL3009
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates g++ libbz2-1.0 libexpat1 libffi8 liblzma5 libsqlite3-0 libuuid1 zlib1g \
    && ldconfig \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /deploycnn/cache --shell /usr/sbin/nologin deploycnn \
    # Volumes take owner and mode from here; 1777, so that `--user` with any other id can write to a new one too.
    && install --directory --owner=deploycnn --group=deploycnn --mode=1777 /deploycnn/data /deploycnn/cache /deploycnn/runs

# --- The virtual environment. What is slow is installed before the sources come in, and is not repeated when they change.
FROM base AS builder
ARG PYTHON
# Full TensorRT: its installer fetches NVIDIA's own index. auto: where that is reachable; yes: or the build fails; no: never.
ARG TENSORRT=auto
WORKDIR /build
COPY pyproject.toml constraints.txt docker/fits.py ./
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    { command -v "python${PYTHON}" || { echo "this image does not fit: its base has no python${PYTHON}" >&2; exit 1; }; } \
    && "python${PYTHON}" fits.py base --python "${PYTHON}" --constraints constraints.txt --cuda \
    && "python${PYTHON}" -m venv /opt/deploycnn \
    && /opt/deploycnn/bin/python fits.py requirements pyproject.toml openvino > requirements.txt \
    && /opt/deploycnn/bin/python fits.py requirements pyproject.toml openvino tensorrt > with-tensorrt.txt \
    && /opt/deploycnn/bin/python -m pip install --constraint constraints.txt --requirement requirements.txt \
    && case "${TENSORRT}" in \
        no) echo "full TensorRT: left out, as asked" ;; \
        yes) /opt/deploycnn/bin/python -m pip install --constraint constraints.txt --requirement with-tensorrt.txt ;; \
        auto) timeout 900 /opt/deploycnn/bin/python -m pip install --constraint constraints.txt --requirement with-tensorrt.txt \
            || echo "full TensorRT: left out, it could not be installed from here (see above); TensorRT for RTX is in" ;; \
        *) echo "TENSORRT=${TENSORRT}: it is auto, yes or no" >&2; exit 1 ;; \
       esac
COPY README.md LICENSE ./
COPY src src
COPY pipeline pipeline
COPY models models
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    /opt/deploycnn/bin/python -m pip install --no-deps .

# --- The image.
FROM base AS final
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="deploycnn (GPU)" \
      org.opencontainers.image.description="Decide which compiled artifact of a CNN classifier to ship, with the proof" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /opt/deploycnn /opt/deploycnn
# Everything that is written goes to the volumes and /tmp: the root may be read-only. USER for ids that no passwd entry names.
# compute: CUDA; utility: NVML, which doctor and every record ask for the GPU's name, clocks and driver.
ENV PATH=/opt/deploycnn/bin:${PATH} \
    DEPLOYCNN_CACHE=/deploycnn/cache \
    HOME=/deploycnn/cache \
    XDG_CACHE_HOME=/deploycnn/cache \
    USER=deploycnn \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /deploycnn
# Imports every compiler and prints doctor (no build sees a GPU): what does not fit fails the build here, not a user's run.
RUN --mount=type=bind,source=docker/fits.py,target=/fits.py \
    python /fits.py installed --cuda
VOLUME ["/deploycnn/data", "/deploycnn/cache", "/deploycnn/runs"]
# Rare: a check takes seconds of CPU, and a measurement would feel it.
HEALTHCHECK --interval=1h --timeout=2m --retries=2 CMD ["deploycnn", "doctor"]
ENTRYPOINT ["deploycnn"]
CMD ["run", "cifar10-gpu"]
