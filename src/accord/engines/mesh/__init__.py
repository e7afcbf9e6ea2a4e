"""The mesh engine: agents spread over devices, of one process or of several."""
