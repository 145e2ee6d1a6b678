"""Fixtures of several modules here that are not for everyone."""

from tests.control_fixtures import control_server, make_control, make_host
from tests.docker_engine import docker_engine, plain_engine, toolkit_engine
from tests.jobs_fixtures import jobs, make_jobs
from tests.served import make_served, served

__all__ = [
    "control_server",
    "docker_engine",
    "jobs",
    "make_control",
    "make_host",
    "make_jobs",
    "make_served",
    "plain_engine",
    "served",
    "toolkit_engine",
]
