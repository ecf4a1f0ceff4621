"""One run: built from settings, run round by round, recorded.

build              settings -> model, images, clients, initial state of the server
loop               the rounds, with a checkpoint after each, and the outcome at the end
record             the typed outcome of a run, its writer and reader
folder             the folder of a run, and its files
checkpoint         everything that a stopped run needs to resume
previous_run       a finished run that another one continues
pseudo_labels      files of the images of each client and their pseudo labels
progress_reporter  the interface of progress reports
"""
