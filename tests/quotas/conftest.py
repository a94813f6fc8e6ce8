from tests.support.fixtures import fleet

__all__ = ["fleet"]
