"""What adapters add to the outputs of linear layers."""
