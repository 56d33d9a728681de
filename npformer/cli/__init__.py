"""The command `npformer`: `main.py` finds the subcommand, `process.py` sets the process up before all else."""
