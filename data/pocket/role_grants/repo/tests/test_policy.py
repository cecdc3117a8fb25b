from gatekeep import Policy


def test_role_allows():
    policy = Policy()
    policy.define("reader", ["invoice:read"])
    policy.assign("ann", "reader")
    assert policy.can("ann", "invoice:read")
    assert not policy.can("ann", "invoice:pay")
    assert not policy.can("bob", "invoice:read")


def test_inherited_rules_count():
    policy = Policy()
    policy.define("reader", ["invoice:read"])
    policy.define("clerk", ["invoice:write"], inherits=["reader"])
    policy.assign("ann", "clerk")
    assert policy.can("ann", "invoice:read")


def test_denial_cuts_a_wildcard():
    policy = Policy()
    policy.define("clerk", ["!invoice:pay", "invoice:*"])
    policy.assign("ann", "clerk")
    assert policy.can("ann", "invoice:write")
    assert not policy.can("ann", "invoice:pay")


def test_unknown_role_is_refused():
    try:
        Policy().assign("ann", "ghost")
    except ValueError as error:
        assert "ghost" in str(error)
    else:
        raise AssertionError("no ValueError")
