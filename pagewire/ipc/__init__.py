"""Between processes: framed messages over ZeroMQ, keys, columns, socket folders, ports."""
