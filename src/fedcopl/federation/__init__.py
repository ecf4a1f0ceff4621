"""The rounds, at server and clients, over any transport.

server            the rounds: refresh the labels, train, average, evaluate
transport         the clients that a server can send requests to, and the report of a round
aggregation       sums and averages over clients: of plain replies, or by secure aggregation
client            one client's reply to each request
client_state      what a client keeps between two requests, also as named arrays for files
holdout_check     rollback of harmful training and averages
prior_estimation  a client's part in the estimation of the priors
validation        checks of each reply and request
"""
