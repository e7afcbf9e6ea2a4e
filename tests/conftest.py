import os
from pathlib import Path

# Most of the suite's time is XLA compiling programs that run for a moment: a third of it is saved by less effort on
# machine code (level 1 saves no more, and LLVM fails to select an instruction there). Read before JAX is imported, here and in the processes that tests start; `XLA_FLAGS` of a user's own
# stay, and `make test-all` compiles as users do.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=2".strip()

import jax

# The same programs come again: a later run, or the other worker, reads them.
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
jax.config.update("jax_numpy_rank_promotion", "raise")
