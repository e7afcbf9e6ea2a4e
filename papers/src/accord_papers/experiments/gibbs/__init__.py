"""The client-only distributed Gibbs paper."""
