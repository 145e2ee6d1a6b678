"""A worker for the hub. One for each kind of source, so that none loads the libraries of the other."""

from solarhost.modelstore.hub import Hub
from solarhost.modelstore.worker import main

if __name__ == "__main__":
    main(lambda job: Hub(job.reference, endpoint=job.url, token=job.secret, stall_s=job.stall_s))
