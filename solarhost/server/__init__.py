"""How the agent is served: gunicorn, one worker, and what happens at a start, a signal and a stop.

`options` and `agent` wire gunicorn, `worker` and `connection` talk HTTP, `intake` finds where a request
ends, `lock` keeps a second agent away, `notify` talks to systemd.
"""
