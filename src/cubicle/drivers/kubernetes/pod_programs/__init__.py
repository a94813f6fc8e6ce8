"""What runs in a pod besides the guest: Python 3.9 and its standard library alone. Each file stands for itself."""
