import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accord.base.remainder import remainder

_found = jax.jit(remainder)


def _require_exact(words, count):
    words = np.asarray(words, np.uint32)
    np.testing.assert_array_equal(_found(jnp.asarray(words), jnp.int32(count)), words % np.uint32(count))


@given(st.integers(1, 2**30), st.randoms(use_true_random=False))
def test_remainders_are_those_of_division(count, random):
    # multiples of the count and what is beside them, where a quotient that is off by one would tell
    multiples = [random.randrange(2**32 // count) * count + beside for beside in (-1, 0, 1) for _ in range(10)]
    anywhere = [random.randrange(2**32) for _ in range(30)]
    _require_exact([word % 2**32 for word in (*multiples, *anywhere, 0, 2**32 - 1, 2**31, 2**31 - 1)], count)


def test_remainders_by_small_counts_of_the_smallest_and_largest_words():
    ends = np.concatenate([np.arange(2000), 2**31 + np.arange(-1000, 1000), 2**32 - 2000 + np.arange(2000)])
    for count in [*range(1, 40), 127, 128, 129, 1023, 1024, 1025, 65_535, 65_537, 2**24 - 1, 2**24 + 1, 2**30]:
        _require_exact(ends, count)
