"""Headers that keep a page to this agent: nothing comes from or goes elsewhere, and no frame holds it."""

from collections.abc import Mapping

_POLICY = {
    "default-src": "'none'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def page_headers(policy: Mapping[str, str]) -> dict[str, str]:
    """Args: `policy` has what this page needs beyond that, by directive of a Content-Security-Policy."""
    return {
        "Content-Security-Policy": "; ".join(" ".join(rule) for rule in {**_POLICY, **policy}.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
