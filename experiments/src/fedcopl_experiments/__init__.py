"""Many runs: grids, stored results, the paper's tables and figures."""
