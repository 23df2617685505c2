"""The vocabulary: frozen, strict about fields, the same after JSON."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from deploycnn import record, types
from deploycnn.errors import RecipeError
from deploycnn.types import (
    Artifact,
    Compiled,
    CompileRequest,
    Deferred,
    Done,
    Doubt,
    Evidence,
    Failed,
    FileEntry,
    Int8Form,
    Interval,
    LayerChoice,
    LayerEvidence,
    Outcome,
    Preprocessing,
    Progress,
    Readiness,
    Skipped,
    Target,
    TensorSpec,
    Value,
    Variant,
    Verdict,
)

SPEC = TensorSpec(name="pixels", dtype="uint8", shape_CHW=(3, 32, 32))
VARIANT = Variant(
    precision="int8",
    int8_form=Int8Form.CPU_U8S8_REDUCED,
    onnx_path=Path("cache/graph.onnx"),
    sha256="ab" * 32,
    parent_sha256="cd" * 32,
    input=SPEC,
    output_name="logits",
    classes=("cat", "dog"),
    notes=("one",),
)
EVIDENCE = Evidence(source="profiler", provider="cpu", layers=(LayerEvidence(name="conv", op="Conv", precision="int8"),))
ARTIFACT = Artifact(
    backend="onnxruntime",
    backend_version="1.31.1",
    target=Target(device="cpu"),
    precision="int8",
    int8_form=Int8Form.CPU_S8S8,
    files=(FileEntry(name="m.onnx", size_bytes=1000, sha256="11" * 32), FileEntry(name="m.data", size_bytes=234, sha256="22" * 32)),
    sha256="33" * 32,
    parent_sha256="ab" * 32,
    input=SPEC,
    output_name="logits",
    n_classes=2,
    batches=(1, 32),
    evidence=EVIDENCE,
    build_s=1.5,
    options={"threads": 1},
    details={"trials": [1, 2], "nested": {"a": None}},
)
EXAMPLES: list[Value] = [
    Target(device="cuda", capability=89),
    Readiness(state="build-only", reason="no GPU", remedy="use one", version="1"),
    Preprocessing(mean=(0.5,), std=(0.25,)),
    SPEC,
    FileEntry(name="a", size_bytes=1, sha256="00"),
    VARIANT,
    VARIANT.model_copy(update={"program_path": Path("a.pt2"), "fixed_batch": 4, "int8_form": None}),
    Progress(done=1, total=2, unit="images"),
    CompileRequest(variant=VARIANT, target=Target(device="cpu"), batches=(1,), folder=Path("a"), cache_folder=Path("b")),
    LayerEvidence(name="a", op="Conv", precision="int8"),
    EVIDENCE,
    Compiled(files=("a",), evidence=EVIDENCE, details={"a": [1]}),
    ARTIFACT,
    Done(),
    Deferred(waits_for="a GPU"),
    Skipped(reason="no kernels"),
    Failed(stage="compile", reason="no", log_tail="last\nlines"),
    Interval(value=1.0, low=0.5, high=1.5),
    Doubt(kind="noisy", what="spread", remedy="wait"),
    Verdict(state="unproven", reason="nothing said"),
    LayerChoice(node="conv", op="Conv", macs_share=0.5, alone=0.01, precision="float32"),
]


def values_of(module: Any) -> list[type[Value]]:
    return [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, Value) and kind is not Value]


def test_every_type_has_an_example_here() -> None:
    assert {type(example) for example in EXAMPLES} == {kind for kind in values_of(types) if kind.__module__ == types.__name__}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_values_survive_json(example: Value) -> None:
    kind = type(example)
    assert kind.model_validate_json(example.model_dump_json()) == example
    assert kind.model_validate(example.model_dump(mode="json")) == example


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_values_are_frozen(example: Value) -> None:
    for name in type(example).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(example, name, None)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_an_unknown_field_is_an_error(example: Value) -> None:
    if isinstance(example, Target):  # written as text
        with pytest.raises(ValidationError):
            Target.model_validate({"device": "cpu", "surprise": 1})
        return
    with pytest.raises(ValidationError, match="surprise"):
        type(example).model_validate(example.model_dump(mode="json") | {"surprise": 1})


@pytest.mark.parametrize("kind", values_of(types) + values_of(record), ids=lambda kind: kind.__name__)
def test_values_take_keywords_only_and_refuse_the_unknown(kind: type[Value]) -> None:
    assert kind.model_config["frozen"]
    assert kind.model_config["extra"] == "forbid"
    with pytest.raises(TypeError):
        kind(1)  # type: ignore[call-arg]


# --- targets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "device", "capability", "shown"),
    [
        ("cpu", "cpu", None, "cpu"),
        ("cuda", "cuda", None, "cuda"),
        ("cuda:sm89", "cuda", 89, "cuda:sm89"),
        ("cuda:sm120", "cuda", 120, "cuda:sm120"),
        (" CUDA:SM90 ", "cuda", 90, "cuda:sm90"),
        ("CPU", "cpu", None, "cpu"),
    ],
)
def test_targets_are_read_and_shown(text: str, device: str, capability: int | None, shown: str) -> None:
    target = Target.parse(text)
    assert (target.device, target.capability, str(target)) == (device, capability, shown)
    assert Target.parse(shown) == target
    assert Target.model_validate(text) == target
    assert hash(Target.parse(shown)) == hash(target)


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:0", "cuda:89", "cuda:sm9", "cuda:sm8900", "cpu:sm80", "cuda sm89", "cpu,cuda", "tpu"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Target.parse(text)
    assert repr(text) in caught.value.asked
    assert "cuda:sm89" in caught.value.remedy


@given(st.sampled_from(["cpu", "cuda"]), st.none() | st.integers(10, 999))
def test_any_target_survives_its_text(device: str, capability: int | None) -> None:
    if device == "cpu":
        capability = None
    target = Target.model_validate({"device": device, "capability": capability})
    assert Target.parse(str(target)) == target


# --- the others ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["build-only", "unavailable"])
def test_what_is_not_ready_says_why(state: str) -> None:
    with pytest.raises(ValidationError, match="must say why"):
        Readiness.model_validate({"state": state})
    assert Readiness.model_validate({"state": state, "reason": "no GPU"}).reason
    assert Readiness(state="ready").reason == ""


@pytest.mark.parametrize("state", ["Ready", "maybe", ""])
def test_states_are_a_closed_list(state: str) -> None:
    with pytest.raises(ValidationError):
        Readiness.model_validate({"state": state, "reason": "x"})
    with pytest.raises(ValidationError):
        Verdict.model_validate({"state": state, "reason": "x"})


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"state": "done"}, Done),
        ({"state": "deferred", "waits_for": "a GPU"}, Deferred),
        ({"state": "skipped", "reason": "x"}, Skipped),
        ({"state": "failed", "stage": "compile", "reason": "x"}, Failed),
    ],
)
def test_outcomes_are_told_apart_by_their_state(document: dict[str, str], kind: type[Value]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Outcome)
    assert type(adapter.validate_python(document)) is kind


@pytest.mark.parametrize("document", [{}, {"state": "ok"}, {"state": "failed"}, {"state": "skipped"}, {"state": "deferred"}])
def test_an_outcome_without_its_reason_is_none(document: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter[Any](Outcome).validate_python(document)


def test_the_size_of_an_artifact_is_that_of_its_files() -> None:
    assert ARTIFACT.size_bytes == 1234


def test_paths_are_written_the_same_on_every_system() -> None:
    assert VARIANT.model_dump(mode="json")["onnx_path"] == "cache/graph.onnx"
    assert VARIANT.model_dump(mode="json")["program_path"] is None


@pytest.mark.parametrize("shape", [(3, 32), (3, 32, 32, 1), ("a", 1, 1), (1.5, 1, 1)])
def test_shapes_have_three_whole_sides(shape: Any) -> None:
    with pytest.raises(ValidationError):
        TensorSpec(name="x", dtype="uint8", shape_CHW=shape)
