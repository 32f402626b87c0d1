import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics import Schedule
from dynamics.errors import ScheduleError

HORIZON = 1200
STEPS = range(HORIZON)


def naive_every(n):
    return set(range(0, HORIZON, n))


def naive_log(per_decade):
    return {round(10 ** (k / per_decade)) for k in range(4 * per_decade)} & set(STEPS)


def naive_piecewise(intervals):
    steps, starts = set(), sorted(intervals)
    for start, end in zip(starts, [*starts[1:], HORIZON], strict=True):
        steps |= set(range(start, end, intervals[start]))
    return steps & set(STEPS)


rules = st.one_of(
    st.integers(1, 300).map(lambda n: (Schedule.every(n), naive_every(n), {"every": n})),
    st.integers(1, 60).map(lambda p: (Schedule.log(p), naive_log(p), {"log": p})),
    st.lists(st.integers(0, HORIZON - 1), max_size=8).map(lambda s: (Schedule.at(s), set(s), {"at": s})),
    st.dictionaries(st.integers(0, 1000), st.integers(1, 200), min_size=1, max_size=4).map(
        lambda p: (Schedule.piecewise(p), naive_piecewise(p), {"piecewise": p})
    ),
)


def chosen(schedule):
    return {step for step in STEPS if schedule(step)}


@given(rules)
def test_it_names_the_steps_that_the_definition_names(rule):
    schedule, expected, configuration = rule
    assert chosen(schedule) == expected
    assert Schedule.from_config(configuration) == schedule
    assert Schedule.from_config(json.loads(json.dumps(schedule.to_config()))) == schedule
    assert not any(schedule(step) for step in range(-500, 0))


@given(st.lists(rules, min_size=2, max_size=3))
def test_a_union_names_the_steps_of_each(parts):
    union = parts[0][0]
    for schedule, _, _ in parts[1:]:
        union = union | schedule
    assert chosen(union) == set().union(*(steps for _, steps, _ in parts))
    assert Schedule.from_config([configuration for *_, configuration in parts]) == union
    assert Schedule.from_config(union.to_config()) == union


@given(rules, rules)
def test_it_can_be_written_down_and_sent_elsewhere(one, other):
    union = one[0] | other[0]
    assert eval(repr(union), {"Schedule": Schedule}) == union
    assert pickle.loads(pickle.dumps(union)) == union
    assert hash(pickle.loads(pickle.dumps(union))) == hash(union)


@given(rules, st.integers(-3, HORIZON - 1), st.integers(0, 40))
def test_within_is_true_if_a_step_after_the_first_up_to_the_last_is_due(rule, after, count):
    schedule, steps, _ = rule
    until = min(after + count, HORIZON - 1)
    assert schedule.within(after, until) == any(after < step <= until for step in steps)


def test_examples_worked_by_hand():
    assert sorted(chosen(Schedule.every(500))) == [0, 500, 1000]
    assert sorted(chosen(Schedule.log(3))) == [1, 2, 5, 10, 22, 46, 100, 215, 464, 1000]
    # Step 2 is 10 ** 0.2 rounded, although 10 ** 0.4 is nearer to it on the logarithmic axis.
    assert sorted(chosen(Schedule.log(5)))[:9] == [1, 2, 3, 4, 6, 10, 16, 25, 40]
    assert sorted(chosen(Schedule.piecewise({0: 100, 250: 400}))) == [0, 100, 200, 250, 650, 1050]
    assert sorted(chosen(Schedule.piecewise({500: 300}))) == [500, 800, 1100]
    assert chosen(Schedule()) == set()
    assert repr(Schedule()) == "Schedule()"
    assert Schedule.log(10)(10**6)
    assert not Schedule.log(10)(10**6 + 1)


def test_what_configuration_files_say():
    assert Schedule.from_config(50) == Schedule.every(50)
    assert Schedule.from_config(Schedule.log(4)) == Schedule.log(4)
    # The command line hands over the first steps as text.
    assert Schedule.from_config({"piecewise": {"0": 10, "200": 100}}) == Schedule.piecewise({0: 10, 200: 100})
    assert Schedule.from_config([5, {"log": 2}, Schedule.at([1])]) == (
        Schedule.every(5) | Schedule.log(2) | Schedule.at([1])
    )


def test_numbers_out_of_an_array_are_numbers():
    assert Schedule.at(np.arange(0, 30, 10)) == Schedule.at([0, 10, 20])
    assert repr(Schedule.every(np.int64(5))) == "Schedule.every(5)"
    assert Schedule.from_config(np.int32(5)) == Schedule.every(5)


FORMS = (
    "a schedule is a number n (every n steps), {every: n}, {log: per_decade}, {at: [steps]}, "
    "{piecewise: {first_step: interval}}, or a list of these; got "
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Schedule.every(0), "Schedule.every: the interval must be a whole number of at least 1; got 0."),
        (lambda: Schedule.every(2.0), "Schedule.every: the interval must be a whole number of at least 1; got 2.0."),
        (lambda: Schedule.every(True), "Schedule.every: the interval must be a whole number of at least 1; got True."),
        (
            lambda: Schedule.log("3"),
            "Schedule.log: the number of steps per decade must be a whole number of at least 1; got '3'.",
        ),
        (lambda: Schedule.at([1, -1]), "Schedule.at: each step must be a whole number of at least 0; got -1."),
        (lambda: Schedule.at(5), "Schedule.at takes a list of steps, such as [10, 100]; got 5."),
        (lambda: Schedule.at("5"), "Schedule.at takes a list of steps, such as [10, 100]; got '5'."),
        (
            lambda: Schedule.piecewise({}),
            "Schedule.piecewise takes a mapping from first step to interval, such as {0: 10, 200: 100}; got {}.",
        ),
        (
            lambda: Schedule.piecewise([10]),
            "Schedule.piecewise takes a mapping from first step to interval, such as {0: 10, 200: 100}; got [10].",
        ),
        (
            lambda: Schedule.piecewise({"-5": 1}),
            "Schedule.piecewise: each first step must be a whole number of at least 0; got '-5'.",
        ),
        (
            lambda: Schedule.piecewise({0: 0}),
            "Schedule.piecewise: each interval must be a whole number of at least 1; got 0.",
        ),
        (
            lambda: Schedule.from_config([0, 2]),
            "a list is the union of schedules, in which a number n means every n steps; got [0, 2]. For exactly these "
            "steps write {at: [0, 2]}, or Schedule.at([0, 2]).",
        ),
        (
            lambda: Schedule().to_config(),
            "a schedule without a rule cannot be written down; build it with every, log, at, ….",
        ),
        (lambda: Schedule.from_config("500"), FORMS + "'500'."),
        (lambda: Schedule.from_config(None), FORMS + "None."),
        (lambda: Schedule.from_config(True), FORMS + "True."),
        (lambda: Schedule.from_config([]), FORMS + "[]."),
        (lambda: Schedule.from_config({}), FORMS + "{}."),
        (lambda: Schedule.from_config({"each": 5}), FORMS + "{'each': 5}."),
        (lambda: Schedule.from_config({"every": 5, "each": 5}), FORMS + "{'every': 5, 'each': 5}."),
        (
            lambda: Schedule.from_config([{"every": -1}]),
            "Schedule.every: the interval must be a whole number of at least 1; got -1.",
        ),
    ],
)
def test_a_schedule_that_names_no_steps_is_an_error(build, message):
    with pytest.raises(ScheduleError) as caught:
        build()
    assert str(caught.value) == message


def test_only_schedules_can_be_united():
    with pytest.raises(TypeError):
        Schedule.every(5) | 5


def test_a_first_step_given_twice_is_refused():
    with pytest.raises(ScheduleError) as error:
        Schedule.piecewise({"0": 5, 0: 10})
    assert str(error.value) == "Schedule.piecewise: each first step may come once; got {'0': 5, 0: 10}."


def test_two_rules_in_one_mapping_are_refused():
    # This is what `--tracker.schedule.every 2` makes of a configuration file's {piecewise: ...}.
    with pytest.raises(ScheduleError) as error:
        Schedule.from_config({"at": [3], "every": 2})
    assert str(error.value) == (
        "a schedule names one rule, but at and every came together: {'at': [3], 'every': 2}. To replace a schedule on "
        "the command line give the whole of it, as '{every: 2}'; for a union write a list."
    )
