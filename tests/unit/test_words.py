from sparkray.words import counted


def test_one_is_one_and_others_are_many() -> None:
    assert [counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
