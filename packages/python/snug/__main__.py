"""Becomes the program: `snug` on the command line, and `python -m snug`."""

import os
import sys
from typing import NoReturn

from . import PROGRAM


def main() -> NoReturn:
    os.execv(PROGRAM, ["snug", *sys.argv[1:]])


if __name__ == "__main__":
    main()
