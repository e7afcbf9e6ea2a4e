"""D-ADMMS, figure 2: figure 1 with 200 rows an agent, where the posterior is half as wide."""

from .fig1 import experiment

EXPERIMENT = experiment("dadmms-fig2", "Figure 2", rows=200, small=0.5, paper=5.0)
