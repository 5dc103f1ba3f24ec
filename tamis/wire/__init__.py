"""Between processes: the engine behind zmq sockets, with the same client interface as one in this process."""
