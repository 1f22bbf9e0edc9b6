"""The one composition root: each process of the sidecar is put together here, and nowhere else."""
