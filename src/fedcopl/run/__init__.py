"""One run: built from settings, played round by round, recorded.

build         settings -> model, images, clients, the server's first state
loop          the rounds, with a checkpoint after each; the outcome at the end
record        the outcome of a run, typed, and its one writer; record_reader reads it, of any version
folder        the files of a run, while it writes; reading finds them again
checkpoint    all that a stopped run needs to go on
pseudo_labels  which images each client holds, and what it believes of them
watcher       being told how a run gets on
"""
