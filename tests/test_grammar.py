"""Formulas cannot run code: only listed functions are evaluated."""

import builtins
import sys
from contextlib import contextmanager, suppress

import formulae.environment
import formulae.terms.call_resolver as resolver
import formulae.transforms
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accord.data.collectives import LocalCollectives
from accord.data.formula_names import FormulaNames
from accord.federation import StudyDocument
from accord.models import glm, grammar
from accord.models.formula import Formula, columns_of_formula, require_groups_of_sites
from accord.models.tables import needed

# --- detection of code that a formula runs ---

_EVENTS = (
    "import",
    "exec",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "marshal.",
    "object.__",
    "code.__new__",
    "ctypes.",
)
# Lists of audit events, one for each formula in evaluation.
_events = []


def _audit(event, arguments):
    if _events and event.startswith(_EVENTS):
        # formulae's scanner calls `eval` for True, False and None, without a name lookup
        if not (event == "exec" and arguments[0].co_names == ()):
            _events[-1].append(f"{event} {arguments[:1]}")


sys.addaudithook(_audit)


@contextmanager
def watched(monkeypatch):
    """Yield a list of events (imports, calls, attribute and name lookups) outside of the listed functions.

    The second value is a context manager that records the audit events of one formula.
    """
    found = []
    lookup, function_of = formulae.environment.VarLookupDict.__getitem__, resolver.get_function_from_module

    def canary(*arguments, **options):
        found.append("canary")
        return arguments[0] if arguments else canary

    def read(owner, name, *default):
        found.append(f"attribute {name}")
        return getattr(owner, name, *default)

    def looked_up(self, name):
        if name not in grammar._ARGUMENTS:
            found.append(f"name {name}")
        return lookup(self, name)

    def function(name, env):
        if name not in grammar._ARGUMENTS:
            found.append(f"function {name}")
        return function_of(name, env)

    with monkeypatch.context() as patch:
        # in the namespaces of formulae, of builtins, and of the modules of the functions
        for place in (formulae.transforms.TRANSFORMS, vars(builtins), vars(formulae.transforms), vars(grammar)):
            patch.setitem(place, "canary", canary)
        patch.setattr(resolver, "getattr", read, raising=False)
        patch.setattr(resolver, "get_function_from_module", function)
        patch.setattr(formulae.environment.VarLookupDict, "__getitem__", looked_up)

        @contextmanager
        def audited():
            _events.append(found)
            try:
                yield
            finally:
                _events.pop()

        yield found, audited


def frames():
    rng = np.random.default_rng(0)
    numbers = ("y", "x", "bp.sys", "race___1", "__class__", "os", "log", "Treatment", "canary.run")
    return [
        pd.DataFrame({**{name: rng.gamma(2.0, 1.0, 12) for name in numbers}, "g": rng.permutation(["a", "b", "c"] * 4)})
        for _ in range(2)
    ]


HONEST = "log(y) ~ x * C(g, Sum) + scale(np.log(x)) + offset(x) + I(g == 'a') + T(g, 'b') + (x | site:g)"
FRAMES = frames()
COLUMNS = list(FRAMES[0])


def worked_out(text):
    """Evaluate a formula at both sites; whether it was accepted."""
    FormulaNames.of(text), needed(text)
    try:
        columns_of_formula(text)
        require_groups_of_sites(text)
    except ValueError:
        pass
    meeting = LocalCollectives(("s1", "s2"))
    try:
        design = Formula(
            text, meeting, FRAMES, COLUMNS, {"g": ["a", "b", "c"]}, COLUMNS, lambda *given: None, lambda size: None
        )
        design.response(FRAMES[0], "s1")
        design.columns(FRAMES[0], "s1", design.matrices(FRAMES[0], "s1"))
    except ValueError:
        return False
    return True


# --- random Python expressions inside and around formulas ---

NAMES = ["x", "y", "g", "bp.sys", "race___1", "`__class__`", "os", "np", "log", "surv", "prop", "canary", "Treatment"]
NAMES += ["eval", "exec", "__import__", "open", "getattr", "TRANSFORMS", "bs", "poly", "True", "None", "q", "site"]
ATTRIBUTES = ["__globals__", "__builtins__", "__class__", "__call__", "__getitem__", "get", "canary", "log", "system"]
ATTRIBUTES += ["__code__", "__subclasses__", "eval", "__init__", "__self__", "run"]
FUNCTIONS = [*grammar._ARGUMENTS, "np.log", "np.linalg.norm", "canary", "C", "I", "surv", "hsgp", "binary", "numpy.log"]
KEYWORDS = ["contrast", "levels", "out", "where", "ref", "omit", "reference", "df", "x"]

leaves = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(["0", "1", "2", "1.5", "'a'", "'b'", '"canary()"', "f'{canary()}'", "b'a'", "..."]),
    st.builds(
        "{}.{}".format, st.sampled_from(["surv", "prop", "np", "x", "log", "I", "C"]), st.sampled_from(ATTRIBUTES)
    ),
)


def _extended(inner):
    def call(function, arguments):
        return f"{function}({', '.join(arguments)})"

    argument = inner | st.builds("{}={}".format, st.sampled_from(KEYWORDS), inner)
    chain = st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=4).map(".".join)
    dotted = st.builds("{}.{}".format, st.sampled_from([*FUNCTIONS, "x", "canary"]), chain)
    operators = ["+", "-", "*", "/", "**", "==", "<", "!=", ">=", ":", "|", "%", "//", "@", " and ", " if x else ", "~"]
    return st.one_of(
        st.builds(call, st.sampled_from(FUNCTIONS), st.lists(argument, min_size=1, max_size=2)),
        st.builds(call, st.sampled_from(FUNCTIONS), st.tuples(st.sampled_from(["x", "g", "bp.sys"]))),
        st.builds(call, dotted, st.lists(argument, max_size=2)),
        st.builds(call, inner, st.lists(argument, max_size=2)),
        st.builds("{}{}{}".format, inner, st.sampled_from(operators), inner),
        st.builds("{}.{}".format, inner, st.sampled_from(ATTRIBUTES)),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("{{{}}}".format, inner),
        st.builds("C(g, {})".format, inner),
        st.builds("C(g, contrast=Treatment({}))".format, inner),
        st.builds("(lambda: {})()".format, inner),
        st.builds("[{} for x in {}]".format, inner, inner),
        st.builds("(q := {})".format, inner),
        st.builds("__import__('os').system({})".format, inner),
        st.builds("-{}".format, inner),
    )


def _known(inner):
    return st.one_of(
        st.builds("{}({})".format, st.sampled_from(["log", "np.sqrt", "I", "scale", "center"]), inner),
        st.builds("maximum({}, {})".format, inner, inner),
        st.builds("{} {} {}".format, inner, st.sampled_from(["+", "*", ">", "=="]), inner),
        st.builds("({})".format, inner),
    )


columns = st.sampled_from(["x", "bp.sys", "`__class__`", "log", "canary.run", "os", "2"])
honest = st.recursive(columns, _known, max_leaves=4)
hostile = st.recursive(leaves, _extended, max_leaves=5)
expressions = st.one_of(hostile, hostile, st.builds("I({})".format, honest))
texts = st.one_of(
    st.builds("{} ~ x".format, expressions),
    st.builds("y ~ {}".format, expressions),
    st.builds("y ~ x + {}".format, expressions),
    st.builds("y ~ x + (1 | {})".format, expressions),
    st.builds("y ~ x + ({} | g)".format, expressions),
    st.builds("y ~ x + offset({})".format, expressions),
    st.builds("y ~ C(g, {})".format, expressions),
    st.builds("surv({}, {}) ~ x".format, expressions, expressions),
    st.builds("log(I({})) ~ scale({})".format, expressions, expressions),
    expressions,
)


def tried(monkeypatch, count):
    """The number of formulas, the number of accepted ones, and recorded events."""
    counts = [0, 0]

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(texts)
    def attack(text):
        with audited():
            counts[1] += worked_out(text)
        counts[0] += 1

    # trigger lazy imports
    worked_out(HONEST)
    with watched(monkeypatch) as (found, audited):
        attack()
    return (*counts, found)


def test_no_formula_runs_or_reads_anything_but_the_functions_on_the_list(monkeypatch):
    made, accepted, found = tried(monkeypatch, 1000)
    assert made >= 1000 and accepted > 30, (made, accepted)
    assert found == []


@pytest.mark.slow
def test_no_formula_runs_anything_in_a_longer_search(monkeypatch):
    made, _, found = tried(monkeypatch, 40_000)
    assert made >= 40_000 and found == []


# Formulas that ran code at every site of a federation, and similar ones.
ATTACKS = [
    "surv.__builtins__.get.__class__.__call__('x') ~ x",
    "prop.__globals__.get('x') ~ x",
    "prop.__globals__.__getitem__('x') ~ x",
    "canary(x) ~ x",
    "surv(x, canary(x)) ~ x",
    "y ~ canary(x)",
    "y ~ np.log.__class__(x)",
    "y ~ I(canary(x))",
    "y ~ scale(canary(x))",
    "y ~ x + offset(canary(x))",
    "y ~ x + (canary(x) | site:g)",
    "y ~ C(g, canary(x))",
    "y ~ C(g, levels=canary(x))",
    "y ~ C(g, contrast=canary(x))",
    "y ~ log(x, where=canary(x))",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_an_attack_is_refused_before_anything_runs(text, monkeypatch):
    with watched(monkeypatch) as (found, audited), audited():
        assert not worked_out(text)
    assert found == []


# `where` causes infinite recursion in pandas, which would end the process
@pytest.mark.parametrize("text", [text for text in ATTACKS if "where=" not in text])
def test_attacks_are_detected_without_the_grammar(text, monkeypatch):
    monkeypatch.setattr(grammar._Grammar, "require_formula", lambda self, tree: None)
    with watched(monkeypatch) as (found, audited), audited():
        with suppress(Exception):
            worked_out(text)
    assert found


def tables():
    rng = np.random.default_rng(1)
    return [
        {
            "y": rng.normal(size=60),
            "x": rng.gamma(2.0, 1.0, 60),
            "g": rng.permutation(["a", "b", "c"] * 20),
            "bp.sys": rng.normal(size=60),
            "race___1": rng.integers(0, 2, 60),
            "__class__": rng.normal(size=60),
            "Treatment": rng.normal(size=60),
        }
        for _ in range(2)
    ]


DOCUMENT = """
[data]
sites = ["north", "south", "west"]
[model]
formula = {formula}
family = "normal"
"""


@pytest.mark.parametrize("text", ATTACKS)
def test_models_and_studies_refuse_an_attack(text, monkeypatch):
    quoted = f'"""{text}"""'
    with watched(monkeypatch) as (found, _):
        with pytest.raises(ValueError, match="cannot be read|unknown function|no site has a column|unknown coding"):
            glm([{**own, "canary": own["x"]} for own in tables()], text)
        with pytest.raises(ValueError, match="cannot be read|unknown function|unknown coding"):
            StudyDocument(DOCUMENT.format(formula=quoted))
    assert found == []


def test_a_column_of_any_name_is_a_column():
    own = tables()
    post = glm(own, "y ~ I(bp.sys ** 2) + race___1 + log(x) + `__class__`")
    assert post.names == ("Intercept", "I(bp.sys ** 2)", "race___1", "log(x)", "__class__", "sigma")
    np.testing.assert_allclose(post.shards[1]["design"][:, 1], own[1]["bp.sys"] ** 2)
    np.testing.assert_array_equal(post.shards[1]["design"][:, 4], own[1]["__class__"])
    # a contrast and a column of the same name
    post = glm(own, "y ~ C(g, Treatment) + Treatment")
    np.testing.assert_array_equal(post.shards[0]["design"][:, 3], own[0]["Treatment"])
    named = StudyDocument(DOCUMENT.format(formula="'y ~ bp.sys + race___1 + I(`__class__` * 2) + C(g, Sum)'"))
    assert named.needed_columns == {"y", "bp.sys", "race___1", "__class__", "g"}


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("cbind(e, n - e) ~ x", r"for cbind\(successes, failures\) write prop\(e, n\) ~"),
        ("cbind(e, f) ~ x", r"write prop\(successes, successes \+ failures\) ~"),
        ("e | trials(n) ~ x", r"write prop\(e, n\) ~"),
        ("e | weights(n) ~ x", "weights are an argument of glm: weights='column'"),
        ("time | cens(event) ~ x", r"write surv\(time, event\) ~"),
        ("y ~ C(g, 'b')", r"write C\(column, Treatment\('b'\)\)"),
        ("y ~ C(g, Treatment('z'))", "unknown level of g 'z'. The choices are 'a', 'b', 'c'"),
        ("y ~ x + x ** 2", r"write the power of a column in I\(\), as in I\(x \*\* 2\)"),
        ("y ~ x + (1 | g/h)", r"nested groups are not supported: .* write \(1 \| column\) or"),
        ("C(g) ~ x", r"is for the right side: .*Ordinal\(\['low', 'high'\]\)"),
        ("scale(y) ~ x", r"scale\(\) is not allowed at this place"),
        ("y ~ g['a']", r"g\[...\] is only allowed as the whole left side; here write I\(g == 'a'\)"),
        ("abs(x[`a b`]) ~ x", r"x\[...\] is only allowed as the whole left side; here write x == 'level'"),
        ("y ~ x[(x)]", r"x\[...\] is only allowed as the whole left side; here write I\(x == 'level'\)"),
        ("surv(x, g['a']) ~ x", r"is only allowed as the whole left side; here write g == 'a'$"),
        ("y ~ 1*x", "0 and 1 mean the intercept and cannot stand in a product: write the terms out"),
        ("y ~ x:1", "0 and 1 mean the intercept and cannot stand in a product"),
        ("y ~ (g + 1) * x", "0 and 1 mean the intercept and cannot stand in a product"),
        ("y ~ (x + 1) ** 2", "0 and 1 mean the intercept and cannot stand in a product"),
        ("y ~ x / (g + h)", r"/ does not accept a sum of terms: write it out, as g \+ g:x for g / x"),
        (
            "y ~ C(n) + I(x * (n != 1))",
            r"n != 1 compares text with a number, as n holds text. C\(n\) makes .* n != '1'$",
        ),
        (
            "surv(x, n == 1) ~ x + C(n)",
            r"n == 1 compares text with a number.* C\(n\) makes it text in the whole formula",
        ),
        ("y ~ C(n) + I(n > 5)", r"n is a factor in C\(n\) and is also used outside of C\(\): .* under another name"),
        ("y ~ C(n) + n", r"n is a factor in C\(n\) and is also used outside of C\(\)"),
        ("y ~ C(n) + x:log(n)", r"n is a factor in C\(n\) and is also used outside of C\(\)"),
        ("log(n) ~ C(n)", r"n is a factor in C\(n\) and is also used outside of C\(\)"),
        ("prop(e, n) ~ C(n)", r"n is a factor in C\(n\) and is also used outside of C\(\)"),
        ("n ~ C(n)", "the response n of the formula 'n ~ C.n.' is also among its terms"),
        ("y ~ I(n == '5')", "n == '5' compares numbers with a text: write a number without quotation marks"),
        ("y ~ I('5' != x + n)", "'5' != x . n compares numbers with a text"),
        ("y ~ I(g == 1)", "g == 1 compares text with a number, as g holds text. Write .*, g == '1'$"),
        ("y ~ I(x == g)", "x == g compares text with a number, as g holds text. Write .*, g == 'level'$"),
        ("y ~ I('a' < g)", "'a' < g: g holds text, which has no order"),
        ("y ~ log(g)", r"log\(g\) needs numbers, and g holds text: write a comparison, I\(g == 'level'\)"),
        ("y ~ I(g == 'A')", "unknown level of g 'A', did you mean 'a'. The choices are 'a', 'b', 'c'"),
        ("I('z' != g) ~ x", "unknown level of g 'z'. The choices are 'a', 'b', 'c'"),
        ("surv(x, g == 'z') ~ x", "unknown level of g 'z'. The choices are 'a', 'b', 'c'"),
        ("y ~ x > 3", r"cannot be parsed, > 3: .*I\(x > 3\)"),
        ("y ~ I(1 < x < 3)", r"write chained comparisons as a product, I\(\(30 < age\) \* \(age < 60\)\)"),
        ("y ~ x^2", r"cannot be read: .*; write powers as I\(x \*\* 2\)"),
        ("y ~ .", "cannot be read: .*; name the columns in place of the dot"),
        ("y ~ I((x > 1) & (x < 2))", "cannot be read: .*; for 'and' write a product of comparisons"),
        ("y ~ I(1e-2 * x)", "cannot be read: .*; write numbers without an exponent"),
        ("y ~ factor(g)", r"write a factor as C\(column\)"),
        ("y ~ ns(x, 3)", r"ns\(...\) depends on all rows of a site"),
        ("y ~ ifelse(x > 1, 1, 0)", r"write ifelse\(\) as products of comparisons, I\(\(x > 50\) \* \(x - 50\)\)"),
        ("y ~ a*b*c*d*e*f*g*h*i*j*k*l*m", "its interactions make 8,192 terms, and at most 2,000 are allowed"),
        ("y ~ x % 2", "cannot be parsed, % 2"),
        ("y ~ log(x, y)", r"the arguments of log\(\) are \(x\)"),
        ("y ~ C(g, levels=Sum)", r"the arguments of C\(\) are \(column, contrast=\)"),
        ("y ~ C(contrast=Sum)", r"the arguments of C\(\) are \(column, contrast=\)"),
        ("y ~ I((9 ** 9) ** (9 ** 9))", "cannot be evaluated"),
        ("y ~ x:offset(y)", r"offset\(\) is not allowed at this place"),
        ("y ~ " + "(" * 10_000 + "x" + ")" * 10_000, "20,005 characters, the limit is 20,000"),
        ("y ~ " + "I(x) + " * 3000 + "x", "21,005 characters, the limit is 20,000"),
    ],
)
def test_errors_of_invalid_formulas_have_a_remedy(formula, message):
    own = [{**one, "e": np.arange(60) % 4, "f": np.arange(60) % 3, "n": np.arange(60) % 5 + 4} for one in tables()]
    with pytest.raises(ValueError, match=message):
        glm([{**one, "h": one["g"]} for one in own], formula)


def design_of(text):
    """The names and the columns of a formula, on rows with all combinations of levels."""
    rng = np.random.default_rng(0)
    levels = {"g": ["a", "b", "c"], "h": ["p", "q"], "k": ["u", "v"]}
    frame = pd.DataFrame({name: rng.choice(own, 200) for name, own in levels.items()})
    frame = frame.assign(y=rng.normal(size=200), x=rng.normal(size=200), w=rng.normal(size=200))
    columns = list(frame)
    design = Formula(
        text, LocalCollectives(("s",)), [frame], columns, levels, columns, lambda *given: None, lambda size: None
    )
    return design.names, design.matrices(frame, "s").design


# numbers of coefficients in R and patsy
@pytest.mark.parametrize(
    ("terms", "count"),
    [
        ("g / x", 6),
        ("g / h", 6),
        ("(g + h) * x - x", 8),
        ("(g + h) ** 2 - h", 6),
        ("C(h):C(g) + C(g)", 6),
        ("h:g + g + h", 6),
        ("g * h * g", 6),
        ("x:g + g:x + x", 4),
        ("g:h:k", 12),
        ("0 + g:h:k", 12),
        ("g:h:k:x", 13),
    ],
)
def test_factors_are_coded_in_full_rank(terms, count):
    names, columns = design_of(f"y ~ {terms}")
    assert len(set(names)) == len(names) == count
    assert np.linalg.matrix_rank(columns) == count


def test_two_columns_of_one_name_are_refused():
    own = [{**one, "g[b]": one["x"]} for one in tables()]
    with pytest.raises(ValueError, match=r"makes two columns named g\[b\]: rename a column of the table"):
        glm(own, "y ~ g + `g[b]`")


def test_a_text_that_is_compared_may_be_a_factor_too():
    own = [{**one, "n": np.arange(60) % 3 + 4} for one in tables()]
    post = glm(own, "y ~ C(n, Treatment('5')) + x:I(n == '6')")
    np.testing.assert_array_equal(post.shards[0]["design"][:, -1], own[0]["x"] * (own[0]["n"] == 6))
