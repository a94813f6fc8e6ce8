"""The embedded driver: OCI bundles run by runc, crun or runsc, without a daemon."""
