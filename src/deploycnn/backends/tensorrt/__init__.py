"""NVIDIA TensorRT: full 10.x and 11.x, and TensorRT for RTX, by one code path. See docs/tensorrt.md.

Networks are strongly typed: precision is what the ONNX file says, and no flag here changes it. TensorRT for RTX builds
engines without a GPU; running one, and everything in session.py, needs one.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from deploycnn.backends._contract import Backend, Options, Session
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.environment import environment
from deploycnn.errors import Unavailable
from deploycnn.types import Artifact, Compiled, CompileRequest, Evidence, Int8Form, ProgressCallback, Readiness, Skipped, Target

ENGINE_FILE = "model.engine"


class TensorRTBackend(Backend):
    """See the module."""

    name = "tensorrt"
    Options: ClassVar[type[Options]] = TensorRTOptions
    options: TensorRTOptions
    packages = ("tensorrt", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx-cu13")

    def probe(self, target: Target) -> Readiness:
        from deploycnn.backends.tensorrt.libraries import choose

        machine = environment()
        try:
            choice = choose(self.options.library, target, machine.gpus, machine.gpu_reason)
        except Unavailable as error:
            reason = f"{error.asked}: {error.found}" if error.found else error.asked
            return Readiness(state="unavailable", reason=reason, remedy=error.remedy)
        version = choice.library.title
        if choice.here:
            return Readiness(state="ready", version=version)
        return Readiness(
            state="build-only",
            reason=f"no sm{choice.capability} GPU is here to run it",
            remedy="resume the run on a machine with one",
            version=version,
        )

    def refuses(self, precision: str, target: Target) -> Skipped | None:
        from deploycnn.backends.tensorrt.libraries import refusal

        return refusal(self.options.library, precision, target, environment().gpus)

    def int8_form(self, target: Target) -> Int8Form:
        return Int8Form.SYMMETRIC_S8

    def compile(self, request: CompileRequest, progress: ProgressCallback) -> Compiled:
        from deploycnn.backends.tensorrt.build import build
        from deploycnn.backends.tensorrt.evidence import from_plan
        from deploycnn.backends.tensorrt.graph_checks import matrix_nodes
        from deploycnn.backends.tensorrt.libraries import choose
        from deploycnn.backends.tensorrt.plan import facts as plan_facts
        from deploycnn.graph import load_graph

        machine = environment()
        choice = choose(self.options.library, request.target, machine.gpus, machine.gpu_reason)
        model = load_graph(request.variant.onnx_path)
        nodes = matrix_nodes(model)
        built = build(request, model, choice, self.options, progress)
        (request.folder / ENGINE_FILE).write_bytes(built.plan)
        evidence: Evidence | None = None  # full TensorRT: only the loaded engine's inspector can say
        seen = {}
        if choice.library.is_rtx:
            seen = plan_facts(built.plan)
            evidence = from_plan(built.plan, nodes, f"cuda:sm{choice.capability}, {choice.library.title}")
        least, _, most = built.details["profile"]
        return Compiled(
            files=(ENGINE_FILE,),
            evidence=evidence,
            batches=tuple(range(least, most + 1)),
            notes=built.notes,
            details={**built.details, **seen, "products": [node.model_dump() for node in nodes]},
        )

    def load(self, artifact: Artifact, folder: Path, threads: int) -> Session:
        from deploycnn.backends.tensorrt import loading
        from deploycnn.backends.tensorrt.cuda import Cuda
        from deploycnn.backends.tensorrt.messages import logger
        from deploycnn.backends.tensorrt.session import TensorRTSession

        plan = loading.read_plan(artifact, folder)
        library = loading.library_of(artifact)
        loading.check_plan(plan, library)
        cuda = Cuda.find()
        device = loading.pick_device(artifact, cuda.devices())
        cuda.call("cudaSetDevice", device.index)
        runtime, engine = loading.deserialise(plan, library)
        return TensorRTSession(
            library=library,
            runtime=runtime,
            engine=engine,
            cuda=cuda,
            device=device,
            messages=logger(library.name)[1],
            artifact=artifact,
            options=self.options,
        )
