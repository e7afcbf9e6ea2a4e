import jax
import jax.numpy as jnp
import numpy as np
import pytest

from accord.base.linear import linear_predictor, sum_of_rows

ROWS, DIM = 20, 3


def derivatives(predictor):
    """A function of coefficients and rows, and its derivatives in every order that accord uses."""

    def value(x, X):
        return jnp.sum(jnp.sin(predictor(X, x)))

    return {
        "value": value,
        "gradient": jax.grad(value),
        "in rows": jax.grad(value, argnums=1),
        "forward": jax.jacfwd(value),
        "Hessian": jax.hessian(value),
        "backward twice": jax.jacrev(jax.grad(value)),
        "third": jax.jacfwd(jax.hessian(value)),
    }


@pytest.mark.parametrize("many", [1, 40])
@pytest.mark.parametrize("shared", [True, False], ids=["one matrix", "own matrices"])
@pytest.mark.parametrize("name", derivatives(linear_predictor))
@pytest.mark.long_from(16)
def test_predictors_of_few_columns_and_their_derivatives_are_those_of_a_product(name, shared, many):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x = jnp.asarray(rng.standard_normal((2, DIM, many)))
        X = jnp.asarray(rng.standard_normal((2, ROWS, DIM) if shared else (2, ROWS, DIM, many)))

        def of_all(predictor):
            chains = jax.vmap(derivatives(predictor)[name], in_axes=(-1, None if shared else -1), out_axes=-1)
            return jax.jit(jax.vmap(chains))(x, X)

        np.testing.assert_allclose(of_all(linear_predictor), of_all(jnp.matmul), rtol=1e-12, atol=1e-12)


def test_rows_and_coefficients_may_be_of_two_types():
    X, x = np.arange(6).reshape(2, 3), jnp.asarray([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(linear_predictor(X, x), [8.0, 26.0])
    np.testing.assert_array_equal(jax.grad(lambda x: linear_predictor(X, x).sum())(x), [3.0, 5.0, 7.0])


@pytest.mark.parametrize("many", [1, 40])
@pytest.mark.parametrize("share", [True, False], ids=["one matrix", "own matrices"])
def test_predictors_of_more_columns_are_products_too(share, many):
    rng = np.random.default_rng(0)
    wide = 3 * DIM
    with jax.enable_x64(True):
        x = jnp.asarray(rng.standard_normal((2, wide, many)))
        X = jnp.asarray(rng.standard_normal((2, ROWS, wide) if share else (2, ROWS, wide, many)))

        def of_all(predictor):
            def both(x, X):
                return jax.value_and_grad(derivatives(predictor)["value"])(x, X)

            chains = jax.vmap(both, in_axes=(-1, None if share else -1), out_axes=-1)
            return jax.jit(jax.vmap(chains))(x, X)

        for found, right in zip(of_all(linear_predictor), of_all(jnp.matmul), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("many", [1, 40])
def test_without_columns_predictors_are_zero(many):
    found = jax.vmap(linear_predictor, in_axes=(None, 0))(jnp.ones((ROWS, 0)), jnp.ones((many, 0)))
    np.testing.assert_array_equal(found, np.zeros((many, ROWS)))


@pytest.mark.parametrize(("chains", "share", "products"), [(1, True, 0), (40, True, 1), (40, False, 0)])
def test_many_chains_that_share_rows_use_a_matrix_product_for_the_gradient(chains, share, products):
    def gradient(x, X):
        return jax.grad(lambda x: jnp.sum(jnp.sin(linear_predictor(X, x))))(x)

    rows = jnp.ones((ROWS, DIM) if share else (ROWS, DIM, chains))
    of_all = jax.vmap(gradient, in_axes=(-1, None if share else -1))
    assert str(jax.make_jaxpr(of_all)(jnp.ones((DIM, chains)), rows)).count("dot_general") == products


@pytest.mark.parametrize("many", [3, 40])
def test_sums_of_rows_and_their_derivatives(many):
    numbers = jnp.asarray(np.random.default_rng(0).standard_normal((4, many, ROWS)), jnp.float32)
    np.testing.assert_allclose(jax.vmap(jax.vmap(sum_of_rows))(numbers), numbers.sum(axis=2), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        jax.vmap(sum_of_rows, in_axes=1)(numbers[0].T), numbers[0].sum(axis=1), rtol=1e-5, atol=1e-5
    )

    def square(x):
        return sum_of_rows(x) ** 2

    np.testing.assert_array_equal(jax.vmap(jax.hessian(square))(numbers[0]), np.full((many, ROWS, ROWS), 2.0))
    of_all = jax.grad(lambda x: jnp.sum(jax.vmap(square)(x)))
    expected = np.broadcast_to(2 * numbers[0].sum(axis=1, keepdims=True), (many, ROWS))
    np.testing.assert_allclose(of_all(numbers[0]), expected, rtol=1e-5, atol=1e-5)
