from tests.support.fixtures import fleet, service

__all__ = ["fleet", "service"]
