"""Watching reshapes while a module runs. Imported only while exporting, since it needs torch."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from deploycnn.types import Value

_RESHAPES = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape)


class ReshapeCall(Value):
    """One call of view or reshape."""

    sizes: tuple[int, ...]
    where: str  # source line, file name and line number


class Reshapes(TorchFunctionMode):
    """Within `with Reshapes() as seen`, `seen.calls` collects every reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[ReshapeCall] = []

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes the call, then makes it."""
        if function in _RESHAPES:
            given = args[1:] if args[1:] else tuple((kwargs or {}).values())
            sizes = given[0] if len(given) == 1 and isinstance(given[0], tuple | list | torch.Size) else given
            if all(isinstance(size, int) for size in sizes):
                frame = traceback.extract_stack()[-2]
                where = f"'{frame.line}' ({Path(frame.filename).name}, line {frame.lineno})"
                self.calls.append(ReshapeCall(sizes=tuple(sizes), where=where))
        return function(*args, **(kwargs or {}))
