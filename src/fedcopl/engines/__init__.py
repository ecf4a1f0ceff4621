"""Ways to carry the questions and answers: here in one process."""
