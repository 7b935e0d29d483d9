"""Many runs: each described by data, kept under its hash, carried out by processes or a Dask cluster, resumed."""
