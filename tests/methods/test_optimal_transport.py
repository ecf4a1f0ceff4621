import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import linprog

from fedcopl.methods.fedotp import _transport

# The expected numbers come from the authors' program (HongxiaLee/FedOTP, commit 9948611) and an independent one.
S = np.array([[0.30, 0.10], [0.25, 0.20], [0.05, 0.28], [0.12, 0.15]])


def solved(similarity, mass, smoothing, tolerance=1e-12, iterations=20_000):
    return _transport(
        np.asarray(similarity), mass=mass, smoothing=smoothing, tolerance=tolerance, iterations=iterations
    )


def authors_loop(similarity, mass, smoothing, threshold=1e-3, limit=100, shift=0.0, cap=1.0):
    """Return the plan and the number of iterations of the authors' loop."""
    kernel = np.exp((similarity - 1 + shift) / smoothing)
    (patches, prompts), u = similarity.shape, np.ones(len(similarity))
    v, done = np.ones(prompts), 0
    while done < limit:
        u = np.minimum(1 / patches / (kernel @ v), cap)
        v, before, done = mass / prompts / (kernel.T @ u), v, done + 1
        if np.abs(v - before).mean() < threshold:
            break
    return u[:, None] * kernel * v, done


def linear_programme(similarity, mass):
    """Return the plan of lowest cost <1 - S, T> and its cost: the problem without smoothing."""
    patches, prompts = similarity.shape
    row_sums = np.kron(np.eye(patches), np.ones(prompts))
    column_sums = np.tile(np.eye(prompts), patches)
    result = linprog(
        (1 - similarity).ravel(),
        A_ub=row_sums,
        b_ub=np.full(patches, 1 / patches),
        A_eq=column_sums,
        b_eq=np.full(prompts, mass / prompts),
    )
    return result.x.reshape(similarity.shape), result.fun


@st.composite
def transport_problems(draw, max_mass=0.95):
    shape = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    similarity = draw(hnp.arrays(np.float64, shape, elements=st.floats(-1, 1)))
    return similarity, draw(st.floats(0.05, max_mass)), draw(st.floats(0.1, 2))


# The example


@pytest.mark.parametrize(
    ("mass", "rows", "value"),
    [
        (1.0, [0.25, 0.25, 0.25, 0.25], 0.22583787),
        (0.8, [0.250000, 0.226583, 0.229840, 0.093578], 0.19314409),
        (0.5, [0.156748, 0.141315, 0.143543, 0.058394], 0.12073387),
    ],
)
def test_marginals_and_values_of_the_example(mass, rows, value):
    plan = solved(S, mass, 0.1)
    assert np.allclose(plan.sum(axis=1), rows, rtol=0, atol=6e-7)
    assert np.allclose(plan.sum(axis=0), mass / 2, rtol=1e-14)
    assert (plan * S).sum() == pytest.approx(value, abs=6e-9)


def test_the_default_tolerance_is_enough_for_the_table():
    plan = _transport(S, mass=0.8, smoothing=0.1)
    assert (plan * S).sum() == pytest.approx(0.19314409, abs=1e-7)
    assert (plan.sum(axis=1) <= 0.25 * (1 + 1e-6)).all()


def test_the_plan_of_the_example():
    expected = [[0.215157, 0.034843], [0.131293, 0.095290], [0.017769, 0.212071], [0.035782, 0.057796]]
    assert np.allclose(solved(S, 0.8, 0.1), expected, rtol=0, atol=6e-7)


def test_one_iteration_by_hand():
    plan = solved(S, 0.8, 0.1, iterations=1)
    expected = [[0.215760, 0.035037], [0.130865, 0.095239], [0.017711, 0.211959], [0.035665, 0.057765]]
    assert np.allclose(plan, expected, rtol=0, atol=6e-7)
    # The columns are right from the first iteration on, the first row still exceeds 1/4.
    assert np.allclose(plan.sum(axis=0), 0.4, rtol=1e-14)
    assert plan.sum(axis=1).max() == pytest.approx(0.250796, abs=6e-7)


def test_the_balanced_plan_of_the_example():
    # The expected numbers are rounded after an early stop, so the last digit may differ by one.
    expected = [[0.219406, 0.030593], [0.153854, 0.096145], [0.022170, 0.227830], [0.104569, 0.145431]]
    assert np.allclose(solved(S, 1.0, 0.1), expected, rtol=0, atol=1.1e-6)
    assert np.allclose(solved(S, 1.0, 0.1), authors_loop(S, 1.0, 0.1, 1e-15, 2000, cap=np.inf)[0], rtol=0, atol=1e-12)


def test_convergence_in_fewer_iterations_than_the_authors_loop():
    # After 20 iterations `_transport` is within 1e-9, because of `_capped_row_sums`; the authors' loop is not.
    mass, smoothing = 0.95, 0.1
    exact = authors_loop(S, mass, smoothing, 1e-16, 20_000)[0]
    assert abs(authors_loop(S, mass, smoothing, 0, 20)[0] - exact).max() > 1e-4
    assert abs(solved(S, mass, smoothing, 0, 20) - exact).max() < 1e-9


def test_iterations_end_at_the_tolerance():
    steps = [solved(S, 0.8, 0.1, tolerance=0, iterations=k) for k in range(1, 20)]
    for tolerance, expected in [(0.5, range(1)), (1e-4, range(1, 6)), (1e-9, range(6, 15))]:
        plan = solved(S, 0.8, 0.1, tolerance)
        assert any(np.array_equal(plan, steps[k]) for k in expected)


# The authors' loop as a reference.


@pytest.mark.parametrize(("mass", "iterations"), [(1.0, 46), (0.8, 10), (0.5, 2)])
def test_the_reference_has_the_authors_number_of_iterations(mass, iterations):
    assert authors_loop(S, mass, 0.1)[1] == iterations


@pytest.mark.parametrize(
    ("shift", "iterations", "value"), [(0.0, 10, 0.19314413), (0.5, 3, 0.19315091), (0.7, 13, 0.19307995)]
)
def test_a_shift_of_the_cost_does_not_change_the_limit(shift, iterations, value):
    plan, done = authors_loop(S, 0.8, 0.1, shift=shift)
    assert (done, (plan * S).sum()) == (iterations, pytest.approx(value, abs=6e-9))
    assert np.allclose(authors_loop(S, 0.8, 0.1, 1e-15, 5000, shift)[0], solved(S, 0.8, 0.1), rtol=0, atol=1e-12)


@given(transport_problems(max_mass=0.8))
def test_plans_agree_with_the_authors_loop(problem):
    similarity, mass, smoothing = problem
    expected, iterations = authors_loop(similarity, mass, smoothing, 1e-14, 3000)
    assume(iterations < 3000)  # a loop that has not converged is no reference
    assert np.allclose(solved(*problem), expected, rtol=0, atol=1e-7)


# Special cases


@pytest.mark.parametrize("mass", [0.3, 0.8, 1.0])
def test_a_constant_similarity_gives_a_uniform_plan(mass):
    assert np.allclose(solved(np.full((4, 2), 0.2), mass, 0.1), mass / 8, rtol=1e-14)


def test_one_prompt_and_full_mass_is_the_mean():
    plan = solved(S[:, :1], 1.0, 0.1)
    assert np.allclose(plan, 0.25, rtol=1e-15)
    assert (plan * S[:, :1]).sum() == pytest.approx(0.18)


def test_one_prompt_by_hand():
    # Rows 0 and 1 are full; the other two share 0.3 as e^0.5 : e^1.2.
    plan = solved(S[:, :1], 0.8, 0.1)
    share = 0.3 / (1 + np.exp(0.7))
    assert np.allclose(plan[:, 0], [0.25, 0.25, share, 0.3 - share], rtol=1e-12)
    assert np.allclose(plan[:, 0], [0.25, 0.25, 0.099544, 0.200456], rtol=0, atol=6e-7)
    assert (plan * S[:, :1]).sum() == pytest.approx(0.16653194, abs=6e-9)


def test_two_equal_prompts_have_half_each():
    plan = solved(S[:, [0, 0]], 0.8, 0.1)
    assert np.allclose(plan, solved(S[:, :1], 0.8, 0.1) / 2, rtol=1e-12)
    assert (plan * S[:, [0, 0]]).sum() == pytest.approx(0.16653194, abs=6e-9)


def test_small_smoothing_solves_the_linear_programme():
    best, cost = linear_programme(S, 0.8)
    assert np.allclose(best, [[0.25, 0], [0.15, 0.10], [0, 0.25], [0, 0.05]]) and cost == pytest.approx(0.59)
    assert np.allclose(solved(S, 0.8, 0.001, 1e-9), best, rtol=0, atol=1e-6)
    assert ((1 - S) * solved(S, 0.8, 0.01)).sum() == pytest.approx(0.590002, abs=6e-7)


@given(transport_problems())
def test_the_cost_is_near_that_of_the_linear_programme(problem):
    similarity, mass, smoothing = 0.15 * (problem[0] + 1), problem[1], 0.01  # between 0 and 0.3, as CLIP's
    _, cost = linear_programme(similarity, mass)
    plan = solved(similarity, mass, smoothing, 1e-9, 5000)
    excess_mass = np.maximum(plan.sum(axis=1) - 1 / len(similarity), 0).sum()  # not solved after 5000 iterations
    assert excess_mass < 0.01
    # Below by the maximum effect of rows above 1 / M, above by that of the entropy.
    excess = ((1 - similarity) * plan).sum() - cost
    assert -0.3 * excess_mass - 1e-6 <= excess <= smoothing * mass * np.log(similarity.size / mass) + 1e-6


# Numerics


def test_the_authors_smallest_smoothing_does_not_underflow():
    # lambda = 0.01 and similarities of 0.2: exp(-(1 - 0.2) / 0.01) = e^-80 is 0 in half precision.
    similarity = np.random.default_rng(0).normal(0.2, 0.05, (3, 49, 2))
    plan = _transport(similarity, mass=0.8, smoothing=0.01)
    assert np.allclose(plan.sum(axis=1), 0.4, rtol=1e-12)
    assert (plan.sum(axis=2) <= (1 + 1e-6) / 49).all()
    assert np.exp(-np.float16(0.8 / 0.01)) == 0


@pytest.mark.parametrize("mass", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("smoothing", [1e-8, 1e-4, 1e8])
def test_any_smoothing_gives_a_plan(mass, smoothing):
    similarity = np.random.default_rng(1).uniform(-1, 1, (5, 7, 2))
    with np.errstate(all="raise", under="ignore"):
        plan = _transport(similarity, mass=mass, smoothing=smoothing)
    assert (plan >= 0).all()
    assert np.allclose(plan.sum(axis=1), mass / 2, rtol=1e-12)


def test_float32_is_solved_in_float64():
    plan = _transport(S.astype(np.float32), mass=0.8, smoothing=0.1, tolerance=1e-12)
    assert plan.dtype == np.float64
    assert np.array_equal(plan, solved(S.astype(np.float32).astype(np.float64), 0.8, 0.1))


@pytest.mark.parametrize(("mass", "smoothing"), [(0.0, 0.1), (1.1, 0.1), (0.8, 0.0), (np.nan, 0.1)])
def test_invalid_parameters_are_refused(mass, smoothing):
    with pytest.raises(ValueError, match=r"mass in \(0, 1\] and a positive smoothing"):
        _transport(S, mass=mass, smoothing=smoothing)


# Many transport_problems at once


def test_problems_are_independent():
    # Problems converge after different numbers of iterations; each result is that of the problem alone.
    rng = np.random.default_rng(2)
    spread = np.array([[0.0, 0.01, 0.1], [0.3, 1.0, 0.0]])
    similarity = spread[:, :, None, None] * rng.normal(0, 1, (2, 3, 9, 2))
    plans = _transport(similarity, mass=0.8, smoothing=0.1)
    alone = [[_transport(one, mass=0.8, smoothing=0.1) for one in row] for row in similarity]
    assert plans.shape == (2, 3, 9, 2)
    assert np.allclose(plans, alone, rtol=1e-12)


def test_no_problems():
    assert _transport(np.zeros((0, 5, 9, 2)), mass=0.8, smoothing=0.1).shape == (0, 5, 9, 2)


def test_the_similarity_is_not_changed():
    before = S.copy()
    _transport(S, mass=0.8, smoothing=0.1)
    assert np.array_equal(S, before)


# Properties


@given(transport_problems(max_mass=1.0))
def test_marginals_of_any_problem(problem):
    similarity, mass, _ = problem
    plan = solved(*problem, tolerance=1e-9)
    assert (plan >= 0).all()
    assert np.allclose(plan.sum(axis=0), mass / similarity.shape[1], rtol=1e-12)
    assert (plan.sum(axis=1) <= (1 + 2e-9) / len(similarity)).all()


@given(transport_problems())
def test_plans_are_optimal(problem):
    # The problem is convex, so this suffices: log T = S / lambda + f_i + g_j, with f equal in rows that are not full
    # and lower in full rows.
    similarity, _, smoothing = problem
    plan = solved(*problem)
    duals = np.log(plan) - similarity / smoothing
    of_rows = duals - duals[:1]
    assert np.allclose(of_rows, of_rows[:, :1], rtol=0, atol=1e-8)
    full = plan.sum(axis=1) >= (1 - 1e-7) / len(similarity)
    f = of_rows[:, 0]
    assert not full.all()
    assert np.allclose(f[~full], f[~full][0], rtol=0, atol=1e-8)
    assert (f[full] <= f[~full][0] + 1e-6).all()


@given(transport_problems(), st.randoms())
def test_order_of_patches_and_prompts_does_not_matter(problem, random):
    similarity, mass, smoothing = problem
    rows = random.sample(range(similarity.shape[0]), similarity.shape[0])
    columns = random.sample(range(similarity.shape[1]), similarity.shape[1])
    shuffled = solved(similarity[rows][:, columns], mass, smoothing)
    assert np.allclose(shuffled, solved(similarity, mass, smoothing)[rows][:, columns], rtol=0, atol=1e-9)


@given(transport_problems(), st.floats(-3, 3), st.floats(0.1, 10))
def test_plans_depend_only_on_differences_in_units_of_lambda(problem, shift, unit):
    similarity, mass, smoothing = problem
    other = solved((similarity + shift) * unit, mass, smoothing * unit)
    assert np.allclose(other, solved(similarity, mass, smoothing), rtol=0, atol=1e-8)
