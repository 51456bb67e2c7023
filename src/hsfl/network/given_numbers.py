"""Numbers that people give: a wrong number is an error that names the client and shows the value. Legend: K clients."""

import reprlib

import numpy as np

from hsfl.errors import InputError

Array = np.ndarray


def float_numbers(what: str, values: object) -> Array:
    """The value as an array of floats, of any shape."""
    try:
        return np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} is {reprlib.repr(values)}; it must be a number or a list of numbers") from None


def positive_number(what: str, value: object) -> float:
    """The value as a number; an error unless the number is above 0 and finite."""
    number = float_numbers(what, value)
    if number.ndim or not (np.isfinite(number) and number > 0):
        raise InputError(f"{what} is {value!r}; it must be a positive finite number")
    return float(number)


def per_client(what: str, values: object, num_clients: int) -> Array:
    """[K] positive finite numbers; one number stands for every client."""
    array = float_numbers(what, values)
    if array.ndim == 0:
        array = np.full(num_clients, float(array))
    if array.shape != (num_clients,):
        raise InputError(f"{what} has shape {array.shape} but there are {num_clients} clients; give one per client")
    return all_positive(what, array, client_axis=0)


def all_positive(what: str, array: Array, client_axis: int) -> Array:
    """The array itself, if every number is positive and finite. `client_axis` counts from the end if negative."""
    if array.size and not (np.min(array) > 0 and np.max(array) < np.inf):  # a NaN fails the comparison as well
        place = np.unravel_index(np.argmin(np.isfinite(array) & (array > 0)), array.shape)
        client = client_axis % array.ndim
        where = "".join(f", round {at}" for at in place[:client]) + "".join(
            f", subchannel {at}" for at in place[client + 1 :]
        )
        raise InputError(f"{what} of client {place[client]}{where} is {array[place]}; it must be positive and finite")
    return array
