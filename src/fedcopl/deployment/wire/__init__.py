"""How a question and its answer look on the wire, and the terms that ride with each."""
