"""Memory and capacity formulas: pure Python, the same for the start-up check and for planning."""
