"""Which cells a recipe has."""

from __future__ import annotations

import pytest

from deploycnn.errors import DeployError
from deploycnn.pipeline.planning import check_recipe, make_backends, plan
from deploycnn.recipe import Recipe


def recipe(**backends: dict[str, object]) -> Recipe:
    return Recipe.model_validate({"precisions": ["fp32", "int8"], "backends": backends})


def names(asked: Recipe) -> list[str]:
    return [planned.cell.name for planned in plan(asked, has_program=True)]


def test_every_backend_has_the_recipes_precisions() -> None:
    found = names(recipe(onnxruntime={}, null={}))
    assert found == ["torch/fp32/cpu", "onnxruntime/fp32/cpu", "onnxruntime/int8/cpu", "null/fp32/cpu", "null/int8/cpu"]


def test_a_backend_may_name_its_own_precisions() -> None:
    found = names(recipe(onnxruntime={"precisions": ["fp16"]}, null={}))
    assert found == ["torch/fp32/cpu", "onnxruntime/fp16/cpu", "null/fp32/cpu", "null/int8/cpu"]


def test_the_reference_stays_where_its_backend_leaves_it_out() -> None:
    assert names(recipe(torch={"precisions": ["fp16"]}))[0] == "torch/fp32/cpu"


@pytest.mark.parametrize("precisions", [["fp23"], [], "fp32", [16]])
def test_a_backends_wrong_precisions_are_refused_before_any_work(precisions: object) -> None:
    with pytest.raises(DeployError) as caught:
        check_recipe(recipe(onnxruntime={"precisions": precisions}))
    assert "fp23" in str(caught.value) or "precisions" in str(caught.value)


def test_naming_precisions_does_not_change_what_is_made_for_one() -> None:
    """Cache keys hold the options: a cell that was built is found again."""
    plain, named = (make_backends(recipe(onnxruntime=options))["onnxruntime"].options for options in ({}, {"precisions": ["fp32"]}))
    assert plain.model_dump(mode="json") == named.model_dump(mode="json")
