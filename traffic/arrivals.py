"""When requests are due. The whole schedule is fixed before the first send."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traffic.randomness import CHUNK, stream


def poisson_arrivals(rate_rps: float, seed: int, repeat: int, horizon_s: float) -> npt.NDArray[np.float64]:
    """Due times in seconds, ascending, all below horizon_s, of a Poisson process with `rate_rps` requests a second.

    The gaps come from (seed, repeat) and are scaled to the rate, so every rate and every arm sees the same draw. The
    number of arrivals is left random: forcing it to rate x horizon would take the tail out of the load.
    """
    if not rate_rps > 0:
        raise ValueError(f"a request rate must be positive, not {rate_rps}")
    generator = stream("arrivals", seed, repeat)
    due_s = np.cumsum(generator.standard_exponential(CHUNK))
    while due_s[-1] / rate_rps < horizon_s:
        more = due_s[-1] + np.cumsum(generator.standard_exponential(CHUNK))
        due_s = np.concatenate([due_s, more])
    due_s = due_s / rate_rps
    return due_s[due_s < horizon_s]
