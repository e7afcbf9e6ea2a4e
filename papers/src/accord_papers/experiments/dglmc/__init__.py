"""The DG-LMC paper."""
