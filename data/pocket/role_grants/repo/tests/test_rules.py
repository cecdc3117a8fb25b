from gatekeep.rules import Rule


def test_exact_and_wildcard():
    assert Rule("invoice:read").matches("invoice:read")
    assert not Rule("invoice:read").matches("invoice:read:draft")
    assert Rule("invoice:*").matches("invoice:read:draft")
    assert not Rule("invoice:*").matches("invoices:read")
    assert Rule("*").matches("anything")


def test_wildcard_in_the_middle():
    assert Rule("invoice:*:read").matches("invoice:7:read")
    assert not Rule("invoice:*:read").matches("invoice:7:pay")
