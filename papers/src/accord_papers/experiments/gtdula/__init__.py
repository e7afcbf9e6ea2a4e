"""The GT-DULA paper."""
