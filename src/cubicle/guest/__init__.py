"""The small program that is PID 1 in every sandbox.

Standard library only, Python 3.9 syntax, one thread. Nothing here may import the rest of the package:
it is shipped alone, as one .pyz. The one module that the host shares with it is `wire`.
"""
