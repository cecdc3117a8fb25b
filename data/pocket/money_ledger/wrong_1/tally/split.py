"""Splitting one amount over several members without losing a cent."""


def check_weights(weights):
    """Raise ValueError unless the weights can carry a split."""
    if any(weight < 0 for weight in weights):
        raise ValueError("a weight is negative")
    if sum(weights) <= 0:
        raise ValueError("the weights add up to nothing")


def allocate(total, weights):
    """Split `total` cents in proportion to `weights`.

    Returns one whole number of cents a weight; they add up to `total`. Each member gets the
    proportional share without its fraction of a cent, then the left-over cents go one each to
    the first members whose weight is not 0.
    """
    check_weights(weights)
    whole = sum(weights)
    # round towards zero, so that refunds get the same shares as charges
    shares = [int(total * weight / whole) for weight in weights]
    left_over = total - sum(shares)
    for index, weight in enumerate(weights):
        if left_over <= 0:
            break
        if weight:
            shares[index] += 1
            left_over -= 1
    return shares
