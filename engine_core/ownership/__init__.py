"""Which call a request belongs to: handover to a later call, and requests whose call is gone."""
