"""The DE-SGLD and DE-SGHMC slides."""
