from gatekeep import Policy


def build():
    policy = Policy()
    policy.define("external", ["!invoice:pay", "!salary:*"])
    policy.define("accountant", ["invoice:*", "salary:read"])
    policy.define("contractor", ["door:open"], inherits=["external"])
    return policy


def test_denial_in_a_later_role():
    policy = build()
    policy.assign("kim", "accountant", "contractor")
    assert not policy.can("kim", "invoice:pay")
    assert not policy.can("kim", "salary:read")


def test_inherited_denial_beats_own_rule():
    policy = build()
    policy.define("temp", ["invoice:pay"], inherits=["accountant", "external"])
    policy.assign("kim", "temp")
    assert not policy.can("kim", "invoice:pay")


def test_denial_after_a_wildcard_in_one_role():
    policy = Policy()
    policy.define("clerk", ["invoice:*", "!invoice:pay"])
    policy.assign("kim", "clerk")
    assert not policy.can("kim", "invoice:pay")
    assert policy.can("kim", "invoice:read")


def test_denial_in_an_earlier_role():
    policy = build()
    policy.assign("kim", "contractor", "accountant")
    assert not policy.can("kim", "invoice:pay")
    assert not policy.can("kim", "salary:read")


def test_other_permissions_stay_allowed():
    policy = build()
    policy.assign("kim", "accountant", "contractor")
    assert policy.can("kim", "invoice:read")
    assert policy.can("kim", "door:open")
    assert not policy.can("kim", "roof:open")


def test_denial_touches_only_its_user():
    policy = build()
    policy.assign("kim", "accountant", "contractor")
    policy.assign("lee", "accountant")
    assert policy.can("lee", "invoice:pay")
