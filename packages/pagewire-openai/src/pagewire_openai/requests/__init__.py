"""Bodies of the OpenAI API, read into GenerateRequests."""
