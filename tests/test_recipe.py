"""Recipes: what they may say, and how people are told what they may not."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploycnn.errors import RecipeError
from deploycnn.recipe import Recipe, Section, known_keys, load_recipe, parse_recipe
from deploycnn.types import Target


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def value_at(recipe: Recipe, key: str) -> Any:
    node: Any = recipe
    for part in key.split("."):
        node = node[part] if isinstance(node, dict) else getattr(node, {"validate": "validate_"}.get(part, part))
    return node


# --- what is right ------------------------------------------------------------------------


def test_an_empty_mapping_is_the_default_recipe() -> None:
    recipe = parse_recipe({}, "test")
    assert recipe.data.name == "cifar10"
    assert recipe.targets == (Target(device="cpu"),)
    assert recipe.backends == {"torch": {}, "onnxruntime": {}}


def test_a_recipe_is_named_after_its_file_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert load_recipe(written(tmp_path, "train: {epochs: 3}")).name == "mine"
    assert load_recipe(written(tmp_path, "name: other")).name == "other"


def test_a_recipe_survives_a_round_trip_through_its_record() -> None:
    recipe = parse_recipe({"validate": {"max_drop_pp": 0.5}, "targets": ["cpu", "cuda:sm89"], "backends": ["tvm"]}, "test")
    assert parse_recipe(recipe.model_dump(mode="json", by_alias=True), "record") == recipe


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "pipeline").glob("*.yaml")), ids=lambda path: path.name)
def test_recipes_that_ship_can_be_read(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name
    assert recipe.precisions


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        (["torch", "tvm"], {"torch": {}, "tvm": {}}),
        ({"torch": None, "tvm": {"trials": 3}}, {"torch": {}, "tvm": {"trials": 3}}),
        ({"torch": {}}, {"torch": {}}),
    ],
)
def test_backends_as_a_list_or_with_options(given_as: Any, expected: dict[str, Any]) -> None:
    assert parse_recipe({"backends": given_as}, "test").backends == expected


def test_batches_are_sorted_and_counted_once() -> None:
    assert parse_recipe({"measure": {"batches": [32, 1, 8, 1]}}, "test").measure.batches == (1, 8, 32)


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse_recipe({}, "test").train.epochs = 3  # type: ignore[misc]


# --- --set --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "key", "expected"),
    [
        ("train.epochs=5", "train.epochs", 5),
        (" train.epochs =5", "train.epochs", 5),
        ("train.lr=1e-3", "train.lr", 0.001),
        ("train.augment=false", "train.augment", False),
        ("data.root=/elsewhere", "data.root", Path("/elsewhere")),
        ("data.train=null", "data.train", None),
        ("data.fallback=synthetic10", "data.fallback", "synthetic10"),
        ("validate.max_drop_pp=0.5", "validate.max_drop_pp", 0.5),
        ("measure.batches=[1, 8]", "measure.batches", (1, 8)),
        ("precisions=[fp32]", "precisions", ("fp32",)),
        ("backends=[torch,tensorrt]", "backends", {"torch": {}, "tensorrt": {}}),
        ("backends={tvm: {trials: 10}}", "backends", {"tvm": {"trials": 10}}),
        ("backends.tvm.trials=10", "backends.tvm", {"trials": 10}),
        ("targets=[cpu, 'cuda:sm89']", "targets", (Target(device="cpu"), Target(device="cuda", capability=89))),
        ("model.arguments.classes=12", "model.arguments", {"classes": 12}),
        ("model.name=my.module:Net", "model.name", "my.module:Net"),
        ("train={epochs: 2}", "train.epochs", 2),
        ("name=a=b", "name", "a=b"),
    ],
)
@pytest.mark.parametrize("text", ["name: x", "train: {epochs: 9, lr: 0.5}\nbackends: [torch]\nvalidate: {batch: 10}"])
def test_set_takes_any_key_and_yaml(tmp_path: Path, text: str, setting: str, key: str, expected: Any) -> None:
    assert value_at(load_recipe(written(tmp_path, text), [setting]), key) == expected


def test_set_lays_over_and_keeps_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path, "train: {epochs: 9, lr: 0.5}\nbackends: [torch, tvm]")
    recipe = load_recipe(path, ["train.epochs=1", "backends.tvm.trials=7", "train.epochs=2"])
    assert (recipe.train.epochs, recipe.train.lr) == (2, 0.5)
    assert recipe.backends == {"torch": {}, "tvm": {"trials": 7}}


@pytest.mark.parametrize("key", known_keys())
def test_set_reaches_every_key(tmp_path: Path, key: str) -> None:
    """The default written with --set is the default."""
    default = parse_recipe({}, "test").model_dump(mode="json", by_alias=True)
    node: Any = default
    for part in key.split("."):
        node = node[part]
    value = yaml.safe_dump(node, default_flow_style=True).removesuffix("...\n")
    recipe = load_recipe(written(tmp_path, "name: custom"), [f"{key}={value}"])
    assert recipe == parse_recipe({}, "test")


@pytest.mark.parametrize("setting", ["train.epochs", "", "=5", " =5", "train.epochs:5"])
def test_a_setting_without_a_key_or_value_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(RecipeError, match="sets nothing"):
        load_recipe(written(tmp_path, "name: x"), [setting])


@pytest.mark.parametrize("setting", ["train.epochs=[", "train.epochs={a", "name='x", "name=\t@"])
def test_a_setting_that_is_not_yaml_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(RecipeError, match="not YAML"):
        load_recipe(written(tmp_path, "name: x"), [setting])


@pytest.mark.parametrize(
    "setting", [".=1", "..=1", "train.=1", ".train=1", "train..epochs=1", "train.epochs.more=1", "precisions.fp32=1", "name.x=1"]
)
@pytest.mark.parametrize("text", ["name: x", "precisions: [{a: 1}, [2]]", "precisions: [null]"])
def test_a_setting_of_a_key_that_cannot_be_is_refused(tmp_path: Path, setting: str, text: str) -> None:
    with pytest.raises(RecipeError):
        load_recipe(written(tmp_path, text), [setting])


# --- wrong keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "wrong", "right"),
    [
        ({"train": {"epoch": 3}}, "train.epoch", "train.epochs"),
        ({"trian": {"epochs": 3}}, "trian", "train"),
        ({"epochs": 3}, "epochs", "train.epochs"),
        ({"precision": ["fp32"]}, "precision", "precisions"),
        ({"validate": {"max_drop": 1}}, "validate.max_drop", "validate.max_drop_pp"),
        ({"validate_": {}}, "validate_", "validate"),
        ({"measure": {"batch": [1]}}, "measure.batch", "measure.batches"),
        ({"data": {"path": "x"}}, "data.path", "known there: "),
        ({"train": {"completely_else": 1}}, "train.completely_else", "known there: "),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_right_one(document: dict[str, Any], wrong: str, right: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(document, "mine.yaml")
    assert f"there is no key '{wrong}'" in caught.value.asked
    assert "mine.yaml" in caught.value.asked
    assert right in caught.value.remedy


def test_several_faults_are_counted() -> None:
    with pytest.raises(RecipeError, match="and 2 more"):
        parse_recipe({"train": {"epoch": 3, "speed": 4}, "dta": {}}, "mine.yaml")


@given(st.sampled_from(known_keys()), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_one_letter_too_few_is_always_understood(key: str, random: Any) -> None:
    name = key.rsplit(".")[-1]
    if len(name) < 5:
        return
    place = random.randrange(len(name))
    wrong = [*key.split(".")[:-1], name[:place] + name[place + 1 :]]
    if ".".join(wrong) in known_keys():
        return
    document: Any = 1
    for part in reversed(wrong):
        document = {part: document}
    with pytest.raises(RecipeError) as caught:
        parse_recipe(document, "mine.yaml")
    assert key in caught.value.remedy


# --- wrong values -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.epochs", 0),
        ("train.epochs", -1),
        ("train.epochs", 2.5),
        ("train.epochs", "many"),
        ("train.epochs", None),
        ("train.epochs", [1]),
        ("train.epochs", {"a": 1}),
        ("train.lr", 0),
        ("train.lr", float("nan")),
        ("train.lr", "fast"),
        ("train.momentum", 1.0),
        ("train.label_smoothing", -0.1),
        ("train.schedule", "cosine"),
        ("train.device", "tpu"),
        ("train.threads", 0),
        ("train.augment", "perhaps"),
        ("data.train", 0),
        ("data.calibration", 0),
        ("data.channels", 4),
        ("data.name", 3),
        ("data.root", 3),
        ("model.width", 0),
        ("model.depth", 0),
        ("model.mean", "0.5"),
        ("model.mean", ["a"]),
        ("model.arguments", [1]),
        ("validate.max_drop_pp", -1),
        ("validate.confidence", 0.5),
        ("validate.confidence", 1.0),
        ("validate.confidence", 95),
        ("validate.batch", 0),
        ("validate.logit_tolerance", 0),
        ("measure.batches", []),
        ("measure.batches", [0]),
        ("measure.batches", [1, -8]),
        ("measure.batches", 1),
        ("measure.batches", ["one"]),
        ("measure.threads", 0),
        ("measure.min_rounds", 1),
        ("measure.budget_s", 0),
        ("limits.compile_s", 0),
        ("limits.memory_mb", -1),
        ("recommend.objective", "beauty"),
        ("recommend.p99_ms", 0),
        ("precisions", []),
        ("precisions", "fp32"),
        ("precisions", [8]),
        ("targets", []),
        ("targets", ["gpu"]),
        ("targets", ["cpu:sm80"]),
        ("targets", ["cuda:89"]),
        ("targets", [3]),
        ("targets", "cpu"),
        ("backends", []),
        ("backends", {}),
        ("backends", "torch"),
        ("backends", 3),
        ("backends", {"torch": 3}),
        ("backends", {"torch": [1]}),
        ("backends", [["torch"]]),
        ("backends", [{"torch": {}}]),
        ("backends", [3]),
        ("backends", [None]),
        ("train", 3),
        ("train", [1]),
        ("train", "fast"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(key: str, value: Any) -> None:
    document: Any = value
    for part in reversed(key.split(".")):
        document = {part: document}
    with pytest.raises(RecipeError) as caught:
        parse_recipe(document, "mine.yaml")
    assert key.split(".")[-1] in str(caught.value) or "is not a target" in str(caught.value)
    assert caught.value.remedy
    assert len(caught.value.one_line) < 400


def sections(section: type[Section], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        if isinstance(field.annotation, type) and not typing.get_origin(field.annotation) and issubclass(field.annotation, Section):
            found += sections(field.annotation, f"{key}.")
        else:
            found.append((key, field.annotation))
    return found


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([key for key, _ in sections(Recipe)]), junk)
@settings(max_examples=300, deadline=None)
def test_no_value_of_any_kind_gets_past_as_anything_but_a_recipe_or_its_error(key: str, value: Any) -> None:
    document: Any = value
    for part in reversed(key.split(".")):
        document = {part: document}
    try:
        recipe = parse_recipe(document, "mine.yaml")
    except RecipeError as error:
        assert error.remedy  # noqa: PT017 - either outcome is right, anything else is not
    else:
        assert isinstance(recipe, Recipe)


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no keys"),
        ("# nothing\n", "holds no keys"),
        ("just words", "holds no keys"),
        ("- a\n- b\n", "holds no keys"),
        ("3", "holds no keys"),
        ("train: [", "not YAML"),
        ("train:\n\tepochs: 3", "not YAML"),
        ("a: b: c", "not YAML"),
        (b"\xff\xfe\x00train", "not YAML"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not YAML"),
        ("train: !!python/object/apply:os.system [echo]", "not YAML"),
        ("1: 2", "mine.yaml"),
        ("null: 2", "mine.yaml"),
        ("? [a, b]\n: 2", ""),
        ("train: {epochs: 3}\ntrain: {lr: 0.1}", "twice"),
        ("train: {epochs: 3, epochs: 4}", "twice"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(written(tmp_path, content))
    assert said in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="Is a directory"):
        load_recipe(tmp_path)


def test_known_keys_are_all_keys() -> None:
    keys = known_keys()
    assert {"train.epochs", "validate.max_drop_pp", "backends", "data.name", "train"} <= set(keys)
    assert not any("validate_" in key for key in keys)
    assert {key for key, _ in sections(Recipe)} <= set(keys)
