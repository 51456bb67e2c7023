"""The order in which subchannels are priced, and so bought: cheapest first, by one of three keys.

Legend: I subchannels; pi [I] the price of each, rent [I] what each is worth to a client (g of `client_prices`), key [I] what is sorted by,
order [I] subchannels from the first to the last; share [I] a set, as 0 and 1; allowed [I] what the client may have, as 0 and 1.

By its tangent at one set, a client pays pi_i - g_i more for every subchannel i of its set (`lagrangian.cheapest_set`). So the m cheapest of
that key are the best set of m, and `take_first` makes them the set:

    order_by_net_price    pi_i - g_i rises: what the client pays for the subchannel, less what the subchannel saves it
    order_by_rent         g_i falls: what saves the client most, whatever it costs
    order_after_set       the members of a set, then pi_i rises: a set that grows by its cheapest subchannel

Sorting begins from the last order, which is nearly right. Two other orders stand elsewhere: water-filling goes through a client's
subchannels from the best gain (`Stage.order`, made by `stage.starts_of`), and `local_search.first_owner` deals them by turns.
"""

import numpy as np

from hsfl.allocation.numba_cache import compiled

Array = np.ndarray


@compiled
def order_by_net_price(pi: Array, rent: Array, key: Array, order: Array) -> None:
    """Sort order [I] in place by price less rent; key [I] is filled with it."""
    for i in range(pi.shape[0]):
        key[i] = pi[i] - rent[i]
    sort_by(key, order)


@compiled
def order_by_rent(rent: Array, key: Array, order: Array) -> None:
    """Sort order [I] in place, the highest rent first; key [I] is scratch."""
    for i in range(rent.shape[0]):
        key[i] = -rent[i]
    sort_by(key, order)


@compiled
def order_after_set(pi: Array, share: Array, key: Array, order: Array) -> None:
    """Sort order [I] in place: the set `share` first, then the cheapest subchannels; key [I] is scratch."""
    for i in range(pi.shape[0]):
        key[i] = pi[i] - 1e9 * share[i]
    sort_by(key, order)


@compiled
def take_first(order: Array, m: int, share: Array, allowed: Array) -> bool:
    """Make the first m allowed subchannels of an order the set; returns whether the set changed."""
    changed, count = False, 0
    for i in order:
        member = 0.0
        if count < m and allowed[i]:
            member = 1.0
            count += 1
        if share[i] != member:
            share[i] = member
            changed = True
    return changed


@compiled
def sort_by(values: Array, order: Array) -> None:
    """Sort order [I] in place, so that values[order] rises. An order that is nearly right costs little.

    numba's own sort would take far longer to compile.
    """
    for j in range(1, order.shape[0]):
        item = int(order[j])
        value = values[item]
        at = j
        while at > 0 and values[order[at - 1]] > value:
            order[at] = order[at - 1]
            at -= 1
        order[at] = item
