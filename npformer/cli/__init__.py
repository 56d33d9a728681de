"""The command `npformer`: `main.py` finds the subcommand, `process.py` sets up the process first."""
