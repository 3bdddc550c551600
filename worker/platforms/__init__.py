"""From `Initialize` to `Ready` on each device."""
