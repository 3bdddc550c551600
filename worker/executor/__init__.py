"""One executor of step plans for all devices, and the protocol that a device implements for it."""
