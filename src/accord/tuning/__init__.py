"""Which numbers to take, before a run; and what its law says of a finished one."""
