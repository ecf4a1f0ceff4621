"""How the numbers of many clients become one: plainly, or so that the server sees nothing but the sum.

asking    the server's questions, and the account of what was sent and dropped
checks    what is wrong with an answer
plain     sums and averages of what each client tells
secure    the same from masked answers
layout    what stands where in a masked answer, for both sides
telling   the client's side: add noise, put on masks, help to take them off
"""
