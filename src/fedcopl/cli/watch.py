"""`fedcopl watch`: a live page of a run."""

import sys

from ..errors import ConfigError, Interrupted, RunFolderError
from .review import WEB, OpenIt, Port, RunArgument


def watch(run: RunArgument, port: Port = 0, open_it: OpenIt = False) -> None:
    """Show how a simulation or a federation gets on, on a local page that only reads.

    With a fixed --port an open page finds its way back when this command is started again.
    """
    if not run.is_dir():
        raise RunFolderError(f"{run}: there is no such folder; name that of a run that has begun")
    try:
        from ..local_page.serving import lasting_token, serve
        from ..watch.feed import Feed
        from ..watch.page import WatchPage
    except ModuleNotFoundError as error:
        raise ConfigError(f"fedcopl watch needs {error.name}, which is not installed: {WEB}") from error
    from ..data.cache import default_folder

    feed = Feed(run)
    token = lasting_token(default_folder() / "watch.key", str(run.resolve()))
    print(f"{feed.look().name}: open this address; Ctrl-C ends.", file=sys.stderr)
    try:
        serve(
            lambda keys: WatchPage(feed, keys).app(),
            port=port,
            token=token,
            tell=lambda address: print(address, flush=True),
            open_it=open_it,
        )
    except KeyboardInterrupt as error:
        raise Interrupted("stopped watching; the run is not touched") from error
