"""The gaps between busy spans."""

from dayplan.spans import merge


def free_slots(busy, opens, closes, at_least=1):
    """Free spans between `opens` and `closes` that last `at_least` minutes."""
    slots = []
    cursor = opens
    for start, end in merge(busy):
        if end <= opens:
            continue
        if start >= closes:
            break
        if start - cursor >= at_least:
            slots.append((cursor, start))
        cursor = end
    if closes - cursor >= at_least:
        slots.append((cursor, closes))
    return slots


def longest_slot(busy, opens, closes):
    """The longest free span, the earliest one among equals; None when there is none."""
    slots = free_slots(busy, opens, closes)
    if not slots:
        return None
    return max(slots, key=lambda slot: slot[1] - slot[0])
