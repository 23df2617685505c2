"""int8-qat rounds on the grids that the int8 file will have, and leaves an ordinary network behind."""

from __future__ import annotations

import sys

import pytest

from deploycnn.errors import Unavailable
from deploycnn.types import Int8Form

LARGEST = {Int8Form.CPU_U8S8: 127, Int8Form.CPU_U8S8_REDUCED: 64, Int8Form.SYMMETRIC_S8: 127}


@pytest.mark.parametrize("form", list(LARGEST))
def test_weights_and_inputs_lie_on_the_grid_of_the_form(form: Int8Form) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao", reason="needs torchao")
    from deploycnn.train._rounding import Rounding

    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 4, 3, bias=False)
    given = layer.weight.detach().clone()
    seen = []
    x_NCHW = torch.randn(8, 3, 5, 5)
    with Rounding(torch.nn.Sequential(layer), form) as rounding:
        rounding.train()
        hook = layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
        layer(x_NCHW)
        hook.remove()
        rounded = layer.weight.detach()
        scale_M = given.abs().flatten(1).amax(dim=1) / LARGEST[form]
        steps = rounded / scale_M[:, None, None, None]
        assert torch.allclose(steps, steps.round(), atol=1e-3)
        assert torch.allclose(steps, (given / scale_M[:, None, None, None]).round(), atol=1e-3)
        levels = len(seen[0].unique())
        assert 100 < levels <= (255 if form == Int8Form.SYMMETRIC_S8 else 256)
        reach = (seen[0] - x_NCHW).abs().max()
        assert 0 < reach <= x_NCHW.abs().max() / 100
        rounding.eval()
        layer(100 * x_NCHW)
        layer(x_NCHW)
        inputs = seen[0]
        hook = layer.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
        layer(x_NCHW)
        hook.remove()
        assert torch.equal(seen[-1], inputs), "what evaluation sees changes no range"
    assert torch.equal(layer.weight, given), "a float network again"
    assert set(layer.state_dict()) == {"weight"}


def test_without_torchao_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, small_dataset) -> None:
    from deploycnn.train.fine_tuning import fine_tune

    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.delitem(sys.modules, "deploycnn.train._rounding", raising=False)
    for name in [name for name in sys.modules if name.startswith("torchao.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Unavailable) as caught:
        fine_tune(None, small_dataset, None, None, None, Int8Form.CPU_U8S8, lambda progress: None)
    assert "deploycnn[qat]" in caught.value.remedy
