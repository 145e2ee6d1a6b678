"""Addresses."""

import ipaddress


def is_loopback(host: str) -> bool:
    """True when `host` names this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
