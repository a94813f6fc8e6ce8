"""What runs in a pod, or in a container on a network, besides the guest: Python 3.9 and its standard library alone.
Each file stands for itself."""
