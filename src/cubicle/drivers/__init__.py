"""Where a sandbox lives. Only app.py knows which driver is used.

The embedded driver's descriptions of a sandbox (its image, its guest, its seccomp profile, its capabilities) hold for
every engine that runs containers: those modules are shared. What acts on a host belongs to one driver alone.
"""
