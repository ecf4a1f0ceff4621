"""The wire format of requests and replies, the terms of a request, and network addresses."""
