"""What attention layers keep of a sequence, and the plan of a step that they share."""
