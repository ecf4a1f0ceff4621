"""A page behind a real port, in a thread of the test."""

import socket
import threading
from contextlib import contextmanager

import uvicorn

from fedcopl.local_page.access import Keys


@contextmanager
def served(make, port=0, token="a-token-for-tests"):
    """`make` turns keys into an app; gives the keys, whose address lets a browser in."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen()
    keys = Keys(token, listening.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(make(keys), lifespan="off", ws="none", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield keys
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
