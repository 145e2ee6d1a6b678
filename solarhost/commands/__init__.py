"""The commands for operators: one file a group, over the agent's REST API.

`remote` finds the agent and talks to it, `failures` are the ends a command can come to, `output` prints
for people or for programs, `names` finds what an operator means, `checks` is what `doctor` looks at.
"""
