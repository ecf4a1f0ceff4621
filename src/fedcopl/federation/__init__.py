"""A round, from both sides, and nothing of how messages travel.

transport          clients that can be asked, the server that asks them, and the account of a round
server        the rounds: refresh the labels, train, average, evaluate
client        one client's answer to each question
sums          sums and averages of what each client tells, or the same from masked answers
state_arrays  a client's state as named arrays, for files
checks        what is wrong with a reply in itself
claims        what is wrong with it beside what the client said before
bounded       how far one client's say goes in a sum
"""
