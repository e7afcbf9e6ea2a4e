"""Methods that need nothing but totals: importance sampling with shared proposals, and its exact fallback."""
