"""A proposal where those before it are thin: at the points of the largest weights (Raftery & Bao 2010)."""

from __future__ import annotations

import numpy as np

from ..fitting.adaptation import Main
from ..fitting.proposal import Mixture, squares
from ..fitting.weighing import Weighing

# Components at most, their degrees of freedom, and how far apart they are, in standard deviations of the main one.
_MOST, _FREEDOM, _APART = 4, 5.0, 1.5
# Points around a component, for each dimension and at least, whose spread is its own.
_NEAR, _FEWEST = 8, 100


def around_heaviest(points: np.ndarray, log_weight: np.ndarray, found: Weighing, main: Main) -> Mixture:
    """Components at some points of large weights that are apart, as wide as the points of batches near them are spread.

    Parameters
    ----------
    points, log_weight
        Where, (point, dim), and how much heavier than other points, (point,).
    found
        The points of all batches.
    main
        The main component, whose distances say what is near.
    """
    factor, dim = np.linalg.cholesky(main.scale)[None], found.points.shape[1]
    centers = list[np.ndarray]()
    for place in np.argsort(-log_weight, kind="stable")[:_FEWEST]:
        point = points[place]
        if not centers or squares(np.array(centers), point[None], factor).min() > _APART**2:
            centers.append(point)
        if len(centers) == _MOST:
            break
    count = min(max(_FEWEST, _NEAR * dim), found.weight.size)
    scales = []
    for away in squares(found.points, np.array(centers), np.repeat(factor, len(centers), axis=0)):
        near = np.argsort(away, kind="stable")[:count]
        # half by weight and half by number, as few points may have all the weight
        w = (found.weight[near] / found.weight[near].sum() + 1.0 / count) / 2.0
        apart = found.points[near] - w @ found.points[near]
        # shrunk towards the main one, as few points say little
        kept = dim / (dim + count)
        scales.append((1.0 - kept) * (apart.T * w) @ apart + kept * main.scale)
    share = np.full(len(centers), 1.0 / len(centers))
    return Mixture(share, np.array(centers), np.linalg.cholesky(np.array(scales)), np.full(len(centers), _FREEDOM))
