"""The entry point of `python -m npformer` and of the command `npformer`, which `npformer.cli` implements."""

import sys

from npformer.cli.process import ended, set_up


def main() -> int:
    """Runs the command and returns its exit code. Sets up the process before NumPy is imported."""
    set_up()
    from npformer.cli.main import main as command

    return ended(command())


if __name__ == "__main__":
    sys.exit(main())
