"""The OpenAI API over the frontend's Generator: requests, answers and errors in its names."""
