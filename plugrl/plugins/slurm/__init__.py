"""Jobs in an allocation of SLURM, with Ray on its nodes."""
