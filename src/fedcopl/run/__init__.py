"""One run, whoever carries the questions: built from settings, played round by round, recorded in a folder.

build         settings -> model, images, clients, the server's first state
loop          the rounds, with a checkpoint after each; the outcome at the end
record        the outcome of a run, typed; written and read in one place
folder        the files of a run
checkpoint    all that a stopped run needs to go on
"""
