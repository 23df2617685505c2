"""int8-qat goes on training the network: where there is none to train, or no form, it says what to do."""

from __future__ import annotations

import pytest

from deploycnn.errors import PrecisionError
from deploycnn.pipeline.fine_tuning import fine_tuned
from deploycnn.types import Int8Form


def test_without_a_network_to_train_it_says_what_to_do(context_with, small_graph, small_images):
    with pytest.raises(PrecisionError, match="ONNX file") as caught:
        fine_tuned(context_with(), small_graph, small_images, Int8Form.CPU_U8S8)
    assert "int8-auto" in caught.value.remedy


def test_without_a_form_it_is_refused(context_with, small_graph, small_images, tmp_path):
    graph = type(small_graph)(variant=small_graph.variant, facts=small_graph.facts, reused=(), checkpoint=tmp_path / "x")
    with pytest.raises(PrecisionError, match="no int8 form"):
        fine_tuned(context_with(), graph, small_images, None)
