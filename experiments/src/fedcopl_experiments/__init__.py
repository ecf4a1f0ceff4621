"""Many runs: grids, the paper's tables and figures, and writers for other tools."""
