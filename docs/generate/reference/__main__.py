"""Writes the documentation for authors of external tools and for producers (`make docs`)."""

import argparse
import sys
from pathlib import Path

from docs.generate.reference.site import RENDERER, write

BUILD = Path(__file__).parents[3] / "build"


def main() -> int:
    """Returns the exit status: 0, or 1 if the npm packages are missing."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate.reference", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=BUILD / "docs", help="default: build/docs")
    parser.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="URL",
        help="URL of your API, for the box to try it; repeatable",
    )
    parser.add_argument(
        "--contact", metavar="ADDRESS", help="whom readers ask for help: an email address, or the URL of your support"
    )
    arguments = parser.parse_args()
    packages = BUILD / "reference"
    if not (packages / RENDERER).exists():
        print(f"{packages / RENDERER} is missing. Run `make docs`, which installs it.", file=sys.stderr)
        return 1
    write(arguments.folder, packages, arguments.server, arguments.contact)
    print(f"The documentation is in {arguments.folder}: open index.html in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
