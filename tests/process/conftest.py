"""Fixtures of several modules here that are not for everyone."""

from tests.control_fixtures import control_server, make_control, make_host
from tests.served import make_served, served

__all__ = ["control_server", "make_control", "make_host", "make_served", "served"]
