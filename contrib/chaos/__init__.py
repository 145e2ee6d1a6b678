"""A real agent under random work and random faults, judged all the time: `make chaos`, docs/chaos.md."""
