"""GPUs as the NVIDIA driver lists them. Quiet where there is no driver."""

from __future__ import annotations

import os

from deploycnn.environment.facts import Gpu


def read_gpus() -> dict[str, object]:
    """Fields of Environment about GPUs. Quiet without a driver: the reason is in `gpu_reason`."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return {"gpu_reason": "CUDA_VISIBLE_DEVICES hides every GPU"}
    try:
        import pynvml
    except ImportError:
        return {"gpu_reason": "the package nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"gpu_reason": f"no NVIDIA driver answers ({error})"}
    try:
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        gpus = tuple(_gpu(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount()))
        return {
            "gpus": gpus,
            "gpu_reason": "" if gpus else "the NVIDIA driver lists no GPU",
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except pynvml.NVMLError as error:
        return {"gpu_reason": f"the NVIDIA driver does not answer ({error})"}
    finally:
        pynvml.nvmlShutdown()


def _gpu(handle: object) -> Gpu:
    import pynvml

    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        power_limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except pynvml.NVMLError:  # laptops and virtual GPUs do not say
        power_limit_w = None
    return Gpu(
        name=str(pynvml.nvmlDeviceGetName(handle)),
        capability=10 * major + minor,
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        power_limit_w=power_limit_w,
    )
