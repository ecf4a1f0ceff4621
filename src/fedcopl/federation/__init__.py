"""A round of the algorithm, from both sides, and nothing of how messages travel.

seam          clients that can be asked, the server that asks them, and the account of a round
server        the rounds: refresh the labels, train, average, evaluate
client        one client's answer to each question
plain_sums    sums and averages of what each client tells
secure_sums   the same from masked answers
checks        what is wrong with a reply
"""
