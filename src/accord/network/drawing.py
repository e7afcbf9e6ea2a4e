"""A network as an SVG picture that inherits colour and font from its surroundings and needs no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import networkx as nx
import numpy as np

# Number of agents up to which the picture shows names.
_NAMED = 24
# Number of agents up to which there is a picture.
MOST = 200
# Width and largest height of the picture in pixels.
_WIDTH, _HEIGHT = 460, 280
# Horizontal and vertical margins in pixels, which leave room for names.
_ASIDE, _ABOVE = 110, 30
# Characters of a name that fit.
_LETTERS = 14


def svg(edges: np.ndarray, names: Sequence[str]) -> str:
    """An SVG of agents as points joined by lines, or "" for more than `MOST` agents.

    Parameters
    ----------
    edges
        Pairs of neighbours, (edge, 2).
    names
        Names of the agents.
    """
    count = len(names)
    if count > MOST:
        return ""
    place = _placed(edges, count)
    height = float(np.ptp(place[:, 1])) + 2 * _ABOVE
    place[:, 1] += height / 2.0
    lines = [
        f'<line x1="{place[i, 0]:.1f}" y1="{place[i, 1]:.1f}" x2="{place[j, 0]:.1f}" y2="{place[j, 1]:.1f}"/>'
        for i, j in edges
    ]
    radius = 6 if count <= _NAMED else 3.5
    points = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(name)}</title></circle>'
        for (x, y), name in zip(place, names, strict=True)
    ]
    texts = []
    if count <= _NAMED:
        outwards = place - place.mean(axis=0)
        for (x, y), (right, down), name in zip(place, outwards, names, strict=True):
            shown = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
            # names outside of the graph: left or right of lateral points, above or below central ones
            sideways = abs(right) > abs(down)
            anchor = ("start" if right > 0 else "end") if sideways else "middle"
            x += np.sign(right) * 10 if sideways else 0
            y += 4 if sideways else (20 if down >= 0 else -11)
            texts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>')
    alt = f"Network of {count} agents and {len(edges)} edges"
    return (
        f'<svg role="img" aria-label="{alt}" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        'font-family="system-ui, sans-serif" font-size="12">'
        f'<g stroke="currentColor" stroke-opacity="0.4">{"".join(lines)}</g><g fill="#0072b2">{"".join(points)}</g>'
        f'<g fill="currentColor">{"".join(texts)}</g></svg>'
    )


def _placed(edges: np.ndarray, count: int) -> np.ndarray:
    """Positions of the agents in pixels (agent, 2): x from the left edge, y from the vertical centre."""
    graph = nx.empty_graph(count)
    graph.add_edges_from(edges.tolist())
    circle = nx.circular_layout(graph)
    # layout by graph distances if the network is connected and not complete, else a circle
    near = count > 2 and nx.is_connected(graph) and nx.density(graph) < 1.0
    found = nx.kamada_kawai_layout(graph, pos=_by_distances(graph, circle)) if near else circle
    place = np.array([found[agent] for agent in range(count)])
    if np.ptp(place[:, 1]) > 1.01 * np.ptp(place[:, 0]):
        # turn tall layouts, as pages are wider than high
        place = place[:, ::-1]
    low, high = place.min(axis=0), place.max(axis=0)
    room = np.array([_WIDTH - 2 * _ASIDE, _HEIGHT - 2 * _ABOVE])
    # one scale for both directions keeps circles round
    scale = float(np.min(room / np.maximum(high - low, 1e-9)))
    return (place - (low + high) / 2.0) * scale + np.array([_WIDTH / 2.0, 0.0])


def _by_distances(graph: nx.Graph, circle: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """An initial layout by classical scaling of the graph distances."""
    square = np.square(np.asarray(nx.floyd_warshall_numpy(graph)))
    centred = square - square.mean(axis=0) - square.mean(axis=1, keepdims=True) + square.mean()
    values, vectors = np.linalg.eigh(-centred / 2.0)
    plane = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    # the circle separates agents with equal distances to all others
    return {agent: plane[agent] + 0.1 * circle[agent] for agent in graph}
