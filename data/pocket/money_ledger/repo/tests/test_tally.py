from tally import Ledger, allocate, format_cents, parse_cents


def test_parse_and_format_agree():
    for text in ("0.00", "12.50", "-0.50", "-3.07", "1000.01"):
        assert format_cents(parse_cents(text)) == text


def test_parse_rejects_three_decimals():
    try:
        parse_cents("1.005")
    except ValueError:
        return
    assert False, "1.005 was taken"


def test_even_split():
    assert allocate(900, [1, 1, 1]) == [300, 300, 300]
    assert allocate(-900, [1, 1, 1]) == [-300, -300, -300]


def test_left_over_goes_to_the_first():
    assert allocate(1000, [1, 1, 1]) == [334, 333, 333]


def test_statement_lists_members_in_order():
    ledger = Ledger(["zoe", "adam"])
    ledger.post("taxi", "7.00", {"zoe": 1, "adam": 3})
    assert ledger.statement() == ["zoe 1.75", "adam 5.25"]
    assert ledger.total() == "7.00"
