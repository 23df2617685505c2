"""Engines on a real GPU: what nothing else here can show. `pytest -m gpu --require cuda` turns a skip into a failure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deploycnn.backends.tensorrt import TensorRTBackend
from deploycnn.backends.tensorrt.options import TensorRTOptions
from deploycnn.backends.tensorrt.session import TensorRTSession
from deploycnn.data import DataSet
from deploycnn.errors import BackendError, Unsupported
from deploycnn.graph import Runner, graph_facts
from deploycnn.precision import precision_classes
from deploycnn.types import Artifact, CompileRequest, FileEntry, Int8Form, Target, Variant
from deploycnn.validate.evidence import check_evidence

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CUDA = Target.parse("cuda")
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "int8+fp16")
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 6e-2, "int8": 5e-2, "int8+fp16": 5e-2}  # relative logit error to the variant's own file

Engine = Callable[..., tuple[Artifact, Path]]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """Builds a variant for the GPU that is here, as a worker would record it."""

    def make(variant: Variant, batches: tuple[int, ...] = (1, 32), **options: object) -> tuple[Artifact, Path]:
        folder = tmp_path / f"engine-{len(list(tmp_path.glob('engine-*')))}"
        folder.mkdir()
        backend = TensorRTBackend(TensorRTOptions.model_validate(options))
        readiness = backend.probe(CUDA)
        if readiness.state != "ready":
            pytest.skip(f"no TensorRT for this GPU: {readiness.reason}")
        refused = backend.refuses(variant.precision, CUDA)
        if refused:
            pytest.skip(refused.reason)
        result = backend.compile(
            CompileRequest(variant=variant, target=CUDA, batches=batches, folder=folder, cache_folder=tmp_path / "cache"), lambda step: None
        )
        data = (folder / result.files[0]).read_bytes()
        artifact = Artifact(
            backend="tensorrt",
            backend_version=readiness.version,
            target=CUDA,
            precision=variant.precision,
            files=(FileEntry(name=result.files[0], size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()),),
            sha256="0",
            parent_sha256=variant.sha256,
            input=variant.input,
            output_name=variant.output_name,
            n_classes=len(variant.classes),
            batches=result.batches,
            evidence=result.evidence,
            build_s=0,
            details=result.details,
        )
        return artifact, folder

    return make


def opened(built: tuple[Artifact, Path], **options: object) -> TensorRTSession:
    session = TensorRTBackend(TensorRTOptions.model_validate(options)).load(*built, 1)
    assert isinstance(session, TensorRTSession)
    return session


def answer(session: TensorRTSession, x_NCHW: np.ndarray) -> np.ndarray:
    session.bind(x_NCHW)
    session.run()
    session.synchronise()
    return session.fetch()


def reference(variant: Variant, x_NCHW: np.ndarray) -> np.ndarray:
    """The file's own arithmetic: unoptimised, so that ONNX Runtime multiplies in float between Q and DQ, and never saturates."""
    with Runner(variant.onnx_path, "the variant", optimised=False) as runner:
        return runner.run(x_NCHW)[0]


def relative_error(logits_NK: np.ndarray, reference_NK: np.ndarray) -> float:
    return float(np.linalg.norm(logits_NK - reference_NK) / np.linalg.norm(reference_NK))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("network", ["lenet", "resnet8"])
def test_every_precision_runs_and_the_engine_says_so(
    network: str, precision: str, graph_of: Callable[[str], Variant], small_dataset: DataSet, engine: Engine, tmp_path: Path
) -> None:
    graph, images_NCHW = graph_of(network), small_dataset.test.images_NCHW
    form = Int8Form.SYMMETRIC_S8 if precision.startswith("int8") else None
    calibration_NCHW = np.ascontiguousarray(small_dataset.train.images_NCHW[:64])
    variant = precision_classes()[precision]().make(graph, form, calibration_NCHW, tmp_path, lambda step: None)
    truth_NK = reference(graph if precision == "bf16" else variant, np.ascontiguousarray(images_NCHW[:32]))  # no CPU runs bf16
    with opened(engine(variant)) as session:
        for batch in (1, 7, 32):
            logits_NK = answer(session, np.ascontiguousarray(images_NCHW[:batch]))
            assert relative_error(logits_NK, truth_NK[:batch]) < TOLERANCE[precision]
        evidence = session.evidence()
    verdict = check_evidence(evidence, precision, CUDA, len(graph_facts(variant.onnx_path).weighted_ops))
    assert verdict.state == "pass", (verdict, evidence)


@pytest.mark.parametrize("options", [{"cuda_graph": False}, {"streams": 4}, {"streams": 4, "cuda_graph": False}])
def test_every_way_of_launching_gives_the_same_logits(
    options: dict[str, object], lenet_graph: Variant, small_dataset: DataSet, engine: Engine
) -> None:
    built = engine(lenet_graph)
    with opened(built) as plain, opened(built, **options) as other:
        for batch in (32, 1, 5):
            x_NCHW = np.ascontiguousarray(small_dataset.test.images_NCHW[:batch])
            np.testing.assert_array_equal(answer(plain, x_NCHW), answer(other, x_NCHW))


def test_tf32_is_less_exact_than_fp32_and_says_so(resnet8_graph: Variant, small_dataset: DataSet, engine: Engine) -> None:
    x_NCHW = np.ascontiguousarray(small_dataset.test.images_NCHW[:32])
    truth_NK = reference(resnet8_graph, x_NCHW)
    with opened(engine(resnet8_graph)) as exact:
        assert relative_error(answer(exact, x_NCHW), truth_NK) < 1e-5
        assert any("TF32 off" in note for note in exact.evidence().notes)
    with opened(engine(resnet8_graph, tf32=True)) as rounded:
        assert relative_error(answer(rounded, x_NCHW), truth_NK) < 5e-3
        assert any("TF32 allowed" in note for note in rounded.evidence().notes)


def test_device_time_is_positive_and_grows_with_the_work(resnet8_graph: Variant, small_dataset: DataSet, engine: Engine) -> None:
    with opened(engine(resnet8_graph, batches=(1, 32))) as session:
        session.bind(np.ascontiguousarray(small_dataset.test.images_NCHW[:32]))
        times_s = []
        for n_runs in (10, 1000):
            session.mark_device()
            for _ in range(n_runs):
                session.run_on_device()
            times_s.append(session.device_elapsed_s())
    assert 0 < times_s[0] < times_s[1]


def test_a_batch_beyond_the_profile_is_refused(lenet_graph: Variant, engine: Engine) -> None:
    with opened(engine(lenet_graph, batches=(1, 4))) as session, pytest.raises(Unsupported, match="batch 5"):
        session.bind(np.zeros((5, 3, 32, 32), np.uint8))


def test_an_engine_for_another_gpu_names_both(lenet_graph: Variant, engine: Engine) -> None:
    artifact, folder = engine(lenet_graph)
    foreign = artifact.model_copy(update={"details": {**artifact.details, "capability": 10}})
    with pytest.raises(BackendError, match="built for sm10") as caught:
        opened((foreign, folder))
    assert f"sm{artifact.details['capability']}" in caught.value.found
