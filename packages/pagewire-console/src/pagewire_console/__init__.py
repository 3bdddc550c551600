"""The console: a page that shows what the service does, and a chat. Its data are those of AdminService."""
