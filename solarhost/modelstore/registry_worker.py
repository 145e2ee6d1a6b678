"""A worker for registries. One for each kind of source, so that none loads the libraries of the other."""

from solarhost.modelstore.registry import Registry
from solarhost.modelstore.worker import main

if __name__ == "__main__":
    main(
        lambda job: Registry(
            job.reference, url=job.url, username=job.username, password=job.secret, stall_s=job.stall_s
        )
    )
