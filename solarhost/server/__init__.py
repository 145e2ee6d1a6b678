"""How the agent is served: gunicorn, one worker, and what happens at a start, a signal and a stop.

`serve`, `options` and `agent` wire gunicorn; `lock` keeps a second agent away; `notify` talks to
systemd, and `pulse` tells it that the agent answers. `worker` is gunicorn's worker: its `poller` holds
the connections (`connection`), finds where requests end (`intake`), decides who waits how long (`waits`)
and answers what it must by itself (`refusals`, `repeats`); whole requests go to the threads (`pool`).
"""
