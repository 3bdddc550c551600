"""HTTP as a transport of the frontend: the port, its endpoints and bounds. Plug-ins say what is served."""
