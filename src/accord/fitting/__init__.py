"""What is fitted to a posterior by sums over the network: Gaussians, proposals, weights of points."""
