"""What holds for every backend found, on the targets it is ready for; the null backend among them."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deploycnn.backends import Backend, Session, backend_classes, create
from deploycnn.errors import BackendError, RecipeError
from deploycnn.types import Artifact, Target

NAMES = sorted(backend_classes())
TARGETS = ("cpu", "cuda", "cuda:sm89", "cuda:sm75")
TOLERANCE = 1e-4  # of the largest logit; fp32 arithmetic in another order
HEAVY = {"tvm", "inductor"}  # their compilers take many seconds: with the slow tests
QUICK = {"tvm": {"tune": False}}  # options under which a backend is tested where its defaults take minutes


def ready(name: str) -> Backend:
    """The backend; the test is skipped with the reason where it cannot run on the CPU."""
    backend = create(name, QUICK.get(name, {}))
    readiness = backend.probe(Target(device="cpu"))
    if readiness.state != "ready":
        pytest.skip(f"{name}: {readiness.reason}")
    return backend


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in NAMES], scope="module")
def built(request, lenet_graph, tmp_path_factory) -> tuple[Backend, Artifact, Path]:
    """Backend, artifact of LeNet for batches 1, 3 and 32, and its folder."""
    from deploycnn.types import CompileRequest
    from deploycnn.workers.bench import Bench

    backend = ready(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    compile_request = CompileRequest(
        variant=lenet_graph, target="cpu", batches=(1, 3, 32), folder=folder, cache_folder=tmp_path_factory.mktemp("cache")
    )
    artifact = Bench(lambda progress: None).compile(backend.name, backend.options.model_dump(), compile_request)
    return backend, artifact, folder


@pytest.fixture
def session(built) -> Iterator[Session]:
    backend, artifact, folder = built
    with backend.load(artifact, folder, 1) as session:
        yield session


@pytest.fixture(scope="module")
def images_NCHW(small_dataset) -> np.ndarray:
    return np.ascontiguousarray(small_dataset.test.images_NCHW[:32])


@pytest.fixture(scope="module")
def reference_NK(lenet_graph, images_NCHW) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(lenet_graph.onnx_path)).run(None, {lenet_graph.input.name: images_NCHW})[0]


def answer(session: Session, x_NCHW: np.ndarray) -> np.ndarray:
    session.bind(x_NCHW)
    session.run()
    session.synchronise()
    return session.fetch()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_probe_never_raises_and_says_why(name, target, capfd):
    readiness = create(name, {}).probe(Target.parse(target))
    assert readiness.state == "ready" or (readiness.reason and readiness.remedy)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", NAMES)
def test_refusals_and_int8_forms_need_no_compiler(name):
    backend = create(name, {})
    for target in TARGETS:
        assert backend.int8_form(Target.parse(target))
        for precision in ("fp32", "fp16", "bf16", "int8", "int8+fp16", "int8-auto"):
            refusal = backend.refuses(precision, Target.parse(target))
            assert refusal is None or refusal.reason


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_names_the_nearest(name):
    field = next(iter(backend_classes()[name].Options.model_fields), "no option")
    with pytest.raises(RecipeError, match=f"backends.{name}.{field}x") as caught:
        create(name, {f"{field}x": 1})
    assert field in caught.value.remedy


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_logits_are_those_of_the_graph(built, session, images_NCHW, reference_NK, batch):
    logits_NK = answer(session, images_NCHW[:batch])
    assert logits_NK.dtype == np.float32
    assert logits_NK.shape == (batch, 10)
    if built[0].name != "null":  # it computes something else, and the same each time
        assert np.abs(logits_NK - reference_NK[:batch]).max() <= TOLERANCE * np.abs(reference_NK).max()
    np.testing.assert_array_equal(answer(session, images_NCHW[:batch]), logits_NK)


def test_batches_of_several_sizes_in_turn(session, images_NCHW):
    first_NK = answer(session, images_NCHW[:3])
    all_NK = answer(session, images_NCHW)
    one_NK = answer(session, images_NCHW[2:3])
    np.testing.assert_allclose(all_NK[:3], first_NK, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one_NK[0], first_NK[2], rtol=1e-4, atol=1e-5)


def test_other_images_of_the_same_size_are_seen(session, images_NCHW):
    before_NK = answer(session, images_NCHW[:3])
    after_NK = answer(session, images_NCHW[3:6])
    assert np.abs(before_NK - after_NK).max() > 1e-4


def test_bind_copies(session, images_NCHW):
    x_NCHW = images_NCHW[:1].copy()
    session.bind(x_NCHW)
    session.run()
    session.synchronise()
    expected_NK = session.fetch()
    x_NCHW[:] = 0
    session.run()
    session.synchronise()
    np.testing.assert_array_equal(session.fetch(), expected_NK)


def test_fetch_copies(session, images_NCHW):
    kept_NK = answer(session, images_NCHW[:3])
    as_it_was_NK = kept_NK.copy()
    answer(session, images_NCHW[3:6])
    np.testing.assert_array_equal(kept_NK, as_it_was_NK)


def test_evidence_names_every_product(built, session, images_NCHW):
    session.bind(images_NCHW[:3])
    evidence = session.evidence()
    assert evidence.source
    assert evidence.provider
    assert len(evidence.layers) >= (1 if built[0].name == "null" else 5)
    assert {layer.precision for layer in evidence.layers} <= {"float32", "f32", "fp32"}
    assert all(layer.name and layer.op for layer in evidence.layers)


def test_a_run_after_evidence_is_right(session, images_NCHW):
    expected_NK = answer(session, images_NCHW[:3])
    session.evidence()
    np.testing.assert_array_equal(answer(session, images_NCHW[:3]), expected_NK)


def test_closing_twice_is_harmless(built):
    backend, artifact, folder = built
    session = backend.load(artifact, folder, 1)
    session.close()
    session.close()


def test_two_sessions_do_not_disturb_one_another(built, images_NCHW):
    backend, artifact, folder = built
    with backend.load(artifact, folder, 1) as first, backend.load(artifact, folder, 1) as second:
        one_NK = answer(first, images_NCHW[:3])
        answer(second, images_NCHW[3:6])
        first.run()
        first.synchronise()
        np.testing.assert_array_equal(first.fetch(), one_NK)


def damages(path: Path) -> dict[str, bytes | None]:
    whole = path.read_bytes()
    return {
        "missing": None,
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "random": np.random.default_rng(0).bytes(len(whole)),
        "text": b"<html>not found</html>",
    }


def test_damaged_files_are_errors_that_people_can_read(built, tmp_path):
    """Through a worker: some runtimes abort their process, and a test should survive that."""
    from deploycnn.workers import Worker

    backend, artifact, folder = built
    for entry in artifact.files:
        (tmp_path / entry.name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / entry.name).write_bytes((folder / entry.name).read_bytes())
    first = tmp_path / artifact.files[0].name
    with Worker(f"{backend.name}/fp32/cpu", log_path=tmp_path / "log.txt") as worker:
        for damage, content in damages(first).items():
            first.unlink(missing_ok=True)
            if content is not None:
                first.write_bytes(content)
            facts = {"sha256": hashlib.sha256(content or b"").hexdigest(), "size_bytes": len(content or b"")}
            entry = artifact.files[0].model_copy(update=facts)  # forged, so that the runtime itself meets the file
            forged = artifact.model_copy(update={"files": (entry, *artifact.files[1:])})
            with pytest.raises(BackendError) as caught:
                worker.load(backend.name, backend.options.model_dump(), forged, tmp_path, timeout_s=60)
            assert "Traceback" not in str(caught.value), damage
            assert "does not know" not in str(caught.value), f"{damage}: an error that nobody translated"


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_knows_no_clock_no_data_and_no_report(name):
    module = inspect.getmodule(backend_classes()[name])
    path = Path(module.__file__)
    sources = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    forbidden = {"measure", "data", "report", "pipeline", "workers", "validate", "train", "export", "precision"}
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in getattr(node, "names", []) if isinstance(node, ast.Import)]
            )
            for imported in names:
                parts = imported.split(".")
                assert not (parts[0] == "deploycnn" and len(parts) > 1 and parts[1] in forbidden), f"{source}: imports {imported}"
