"""What a recipe may say under `backends.tensorrt`. Precision is not among it: that is in the ONNX file."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from deploycnn.backends._contract import Options


class TensorRTOptions(Options):
    """How engines are built and run."""

    library: Literal["auto", "tensorrt", "tensorrt_rtx"] = "auto"  # auto: full TensorRT where its GPU is here, else RTX
    min_batch: int = Field(1, ge=1)  # of the optimisation profile
    opt_batch: int | None = Field(None, ge=1)  # batch size that kernels are chosen for; None: the largest that will be run
    max_batch: int | None = Field(None, ge=1)  # None: the largest that will be run
    workspace_mb: float | None = Field(None, gt=0)  # scratch memory a kernel may ask for; None: TensorRT's default, all of it
    builder_level: int = Field(3, ge=0, le=5)  # 0 builds fastest, 5 searches longest; no effect on RTX, which tunes when it loads
    timing_cache: bool = True  # keep kernel timings from build to build; RTX has none
    tf32: bool = False  # let fp32 matrix products round their inputs to 10 bits; recorded with the engine
    streams: int = Field(1, ge=1, le=64)  # inferences in flight at once: throughput, not latency
    cuda_graph: bool = True  # replay one recorded launch instead of launching every kernel anew

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        given = [size for size in (self.min_batch, self.opt_batch, self.max_batch) if size is not None]
        if given != sorted(given):
            raise ValueError("needs min_batch <= opt_batch <= max_batch")
        return self
