"""ONNX file to engine. A fresh builder, network and parser for every build: reusing them crashed the process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploycnn.backends.tensorrt.graph_checks import check_graph, check_operators
from deploycnn.backends.tensorrt.libraries import Choice
from deploycnn.backends.tensorrt.messages import Messages, logger, parser_error, vendor_error
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.errors import BackendError, Unavailable, Unsupported
from deploycnn.store import write_atomic
from deploycnn.types import CompileRequest, Progress, ProgressCallback


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Batch sizes of the optimisation profile."""

    least: int
    best: int  # kernels are chosen for it
    most: int


@dataclass(frozen=True, kw_only=True)
class Built:
    """An engine, serialised."""

    plan: bytes
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def batch_profile(options: TensorRTOptions, batches: tuple[int, ...]) -> Profile:
    """The profile for the batch sizes that will be run. Raises Unsupported where the options leave none."""
    most = options.max_batch or max(*batches, options.min_batch, options.opt_batch or 1)
    best = options.opt_batch or min(max(max(batches), options.min_batch), most)
    if not options.min_batch <= best <= most:
        raise Unsupported(
            f"no batch profile holds {options.min_batch} <= {best} <= {most}",
            found=f"batches to run: {', '.join(map(str, batches))}",
            remedy="set backends.tensorrt.min_batch, opt_batch and max_batch in ascending order",
        )
    return Profile(least=options.min_batch, best=best, most=most)


def build(request: CompileRequest, model: Any, choice: Choice, options: TensorRTOptions, progress: ProgressCallback) -> Built:
    """Builds the variant's engine for the chosen capability.

    Args:
        request: says variant, batches and the cache folder.
        model: the variant's ModelProto.
        choice: library and capability.
        options: of the backend.
        progress: three steps.

    Raises:
        Unsupported: an operator, type or zero point that TensorRT does not take, by node and tensor.
        Unavailable: the library cannot start here.
        BackendError: anything else it said.
    """
    trt, source = choice.library.module, request.variant.onnx_path.name
    log, messages = logger(choice.library.name)
    messages.clear()
    progress(Progress(done=0, total=3, unit="steps", note="checking the graph"))
    check_graph(model, source)
    builder = _builder(choice, log, messages)
    flags = trt.NetworkDefinitionCreationFlag.__members__
    # Types come from the file: 10.x needs the flag for that, 11.x and RTX know nothing else.
    network = builder.create_network(1 << int(flags["STRONGLY_TYPED"]) if "STRONGLY_TYPED" in flags else 0)
    parser = trt.OnnxParser(network, log)
    check_operators(model, parser, source)
    progress(Progress(done=1, total=3, unit="steps", note="reading the graph"))
    if not parser.parse(model.SerializeToString()):
        raise parser_error(parser, source)
    config, details = _configured(builder, choice, options)
    _add_profile(builder, config, network, request, options, details)
    cache = _attach_timing_cache(config, choice, options, request.cache_folder)
    progress(Progress(done=2, total=3, unit="steps", note="building the engine"))
    memory = builder.build_serialized_network(network, config)
    if memory is None:
        raise vendor_error(
            f"TensorRT cannot build {source} for sm{choice.capability}",
            messages,
            "look at the message; another precision or builder_level may build",
        )
    if cache is not None:
        write_atomic(cache, bytes(config.get_timing_cache().serialize()))  # a lost update costs time only
    progress(Progress(done=3, total=3, unit="steps"))
    details["timing_cache"] = cache is not None
    return Built(plan=bytes(memory), notes=tuple(f"TensorRT warns: {text}" for text in messages.warnings()[:3]), details=details)


def _builder(choice: Choice, log: Any, messages: Messages) -> Any:
    try:
        return choice.library.module.Builder(log)
    except (TypeError, RuntimeError) as error:  # pybind11: the factory returned null
        failure = vendor_error(f"{choice.library.title} cannot start a build", messages, "it needs an NVIDIA driver and a GPU")
        raise Unavailable(failure.asked, found=failure.found, remedy=failure.remedy) from error


def _configured(builder: Any, choice: Choice, options: TensorRTOptions) -> tuple[Any, dict[str, Any]]:
    trt = choice.library.module
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # what the inspector can say later is decided here
    config.builder_optimization_level = options.builder_level
    if options.workspace_mb is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(options.workspace_mb * 1e6))
    (config.set_flag if options.tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
    if choice.library.is_rtx:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{choice.capability}"), 0)
    return config, {
        "library": choice.library.name,
        "library_version": choice.library.version,
        "capability": choice.capability,
        "tf32": options.tf32,
        "workspace_mb": options.workspace_mb,
        "builder_level": None if choice.library.is_rtx else options.builder_level,
    }


def _add_profile(
    builder: Any, config: Any, network: Any, request: CompileRequest, options: TensorRTOptions, details: dict[str, Any]
) -> None:
    """A graph of fixed batch has no dynamic shape, and takes no profile."""
    spec, fixed = request.variant.input, request.variant.fixed_batch
    if network.num_inputs != 1 or str(network.get_input(0).name) != spec.name:
        names = ", ".join(str(network.get_input(i).name) for i in range(network.num_inputs))
        raise Unsupported(
            f"{request.variant.onnx_path.name} has other inputs than its variant says",
            found=f"the file: {names or 'none'}; the variant: {spec.name}",
            remedy="export the model again with one image input",
        )
    if fixed is not None:
        details["profile"] = [fixed, fixed, fixed]
        return
    profile = batch_profile(options, request.batches)
    shapes = [(batch, *spec.shape_CHW) for batch in (profile.least, profile.best, profile.most)]
    optimisation = builder.create_optimization_profile()
    optimisation.set_shape(spec.name, *shapes)
    if config.add_optimization_profile(optimisation) < 0:
        raise BackendError("TensorRT takes no such profile", found=str(shapes), remedy="set min_batch, opt_batch, max_batch")
    details["profile"] = [profile.least, profile.best, profile.most]


def _attach_timing_cache(config: Any, choice: Choice, options: TensorRTOptions, folder: Path) -> Path | None:
    """The file that kernel timings are kept in; None where there are none (RTX measures nothing while it builds)."""
    if choice.library.is_rtx or not options.timing_cache:
        return None
    path = folder / f"timing-{choice.library.version}-sm{choice.capability}.cache"
    kept = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(kept)
    if cache is None or not config.set_timing_cache(cache, False):  # damaged, or of another device: begin anew
        config.set_timing_cache(config.create_timing_cache(b""), False)
    return path
