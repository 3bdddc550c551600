"""From `Initialize` to `Ready`: what loading has in common on all devices."""
