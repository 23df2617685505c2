"""int8 of a network that was fine-tuned while it was rounded (see train.fine_tuning); the file has the same Q/DQ form."""

from __future__ import annotations

from deploycnn.precision.int8 import Int8


class Int8Qat(Int8):
    """The graph that comes in holds the fine-tuned weights."""

    name = "int8-qat"
    trains = True
