"""Rate limiting with token buckets and a clock of your own."""

from throttle.bucket import Bucket
from throttle.limiter import Limiter

__all__ = ["Bucket", "Limiter"]
