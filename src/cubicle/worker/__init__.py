"""The network worker: one process beside the service that handles all traffic that comes out of sandboxes.

The egress proxy, its DNS and the gateway of the coding agents parse bytes that a sandbox wrote. They run here, so that
a flood of them, or a fault in a parser, leaves the service's event loop alone. The service starts a spawner
(`python -m cubicle.worker`), which imports everything once and forks the worker; after a death a fork is ready within
milliseconds. The service connects to each guest and passes the connected socket to the worker (SCM_RIGHTS); all else
goes over a control channel of short JSON messages (`channel.py`).

What outlives a worker stays with the service: budgets, tokens of agents, personal tokens, the last good egress rules.
Messages of the worker are checked as a stranger's.
"""
