from sparkray.cli.restarts import MAX_PAUSE_S, MAX_QUICK, QUICK_S, Restarts


def test_pauses_grow_with_quick_deaths_until_it_is_given_up() -> None:
    restarts, pauses = Restarts(), []
    for death in range(MAX_QUICK):
        restarts.started(float(death))
        pauses.append(restarts.pause_s(death + 0.5))
    assert pauses.pop() is None and pauses == sorted(pauses, key=lambda p: p or 0.0)
    assert pauses[0] is not None and pauses[0] < 0.2 and pauses[-1] == MAX_PAUSE_S


def test_deaths_that_are_far_apart_are_never_too_many() -> None:
    restarts = Restarts()
    for death in range(5 * MAX_QUICK):
        restarts.started(10.0 * death)
        lived_s = 0.5 if death % 2 else QUICK_S
        assert restarts.pause_s(10.0 * death + lived_s) is not None
