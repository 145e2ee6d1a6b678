"""`python -m hf_server`."""

import sys

from hf_server import log
from hf_server.options import parse
from hf_server.serving import Server


def main() -> None:
    options = parse(sys.argv[1:])
    sys.argv[1:] = []  # gunicorn reads them too
    log.configure()
    Server(options).run()


if __name__ == "__main__":
    main()
