"""Pure statistics of latency samples: numpy in, numbers out, the same seed gives the same numbers.

Runs inside a block share the state of the machine (caches, clock, neighbours), and blocks inside a process share its
memory layout, so neither runs nor blocks may be treated as independent. Methods:

* intervals of percentiles: bootstrap over blocks, stratified by process (Davison & Hinkley 1997, section 3.8),
  percentile limits expanded for small numbers of blocks (Hesterberg 2015, "What Teachers Should Know About the
  Bootstrap", section 5.2), never narrower than the order-statistic interval of independent runs (Hahn & Meeker 1991,
  section 5.2), and widened by the spread between process restarts;
* spread between restarts: excess of the variance of process medians over what the blocks explain. One artifact has
  too few restarts to know it, so the spread is pooled over artifacts (the idea of Smyth 2004's moderated t); restarts
  as a level of their own: Kalibera & Jones 2013, "Rigorous benchmarking in reasonable time";
* several comparisons at once: Holm 1979;
* drift: Mann 1945 and Kendall's trend test, Theil-Sen slope.

Nothing is trimmed anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deploycnn.stats.bootstrap import (
    DRAWS,
    Pool,
    block_quantiles,
    block_weights,
    expanded_limits,
    half_width,
    order_statistic_limits,
    paired_ratio_interval,
    pool,
    quantile_draws,
    quantile_interval,
    sorted_quantile,
)
from deploycnn.stats.restarts import (
    NO_SPREAD,
    Restarts,
    Spread,
    own_spread,
    restart_spreads,
)
from deploycnn.stats.rules import (
    carries,
    combined_dof,
    count_outliers,
    holm,
    smallest_sample,
    student_p_value,
    student_quantile,
    trend,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

__all__ = [
    "DRAWS",
    "NO_SPREAD",
    "Floats",
    "Ints",
    "Pool",
    "Restarts",
    "Spread",
    "block_quantiles",
    "block_weights",
    "carries",
    "combined_dof",
    "count_outliers",
    "expanded_limits",
    "half_width",
    "holm",
    "order_statistic_limits",
    "own_spread",
    "paired_ratio_interval",
    "pool",
    "quantile_draws",
    "quantile_interval",
    "restart_spreads",
    "smallest_sample",
    "sorted_quantile",
    "student_p_value",
    "student_quantile",
    "trend",
]
