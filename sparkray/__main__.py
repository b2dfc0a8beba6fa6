"""``python -m sparkray`` is the command ``sparkray``."""

from sparkray.cli.main import main

if __name__ == "__main__":
    main(prog_name="sparkray")
