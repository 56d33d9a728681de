"""`python -m npformer`, and the command `npformer`: see `npformer.cli`."""

import sys

from npformer.cli.process import ended, set_up


def main() -> int:
    """Runs this process's command and returns its exit code, with which the process then ends.

    The process is set up before NumPy is imported.
    """
    set_up()
    from npformer.cli.main import main as command

    return ended(command())


if __name__ == "__main__":
    sys.exit(main())
