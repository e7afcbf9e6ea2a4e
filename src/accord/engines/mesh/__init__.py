"""The mesh engine, with agents spread over the devices of one or several processes."""
