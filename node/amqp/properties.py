"""The property list of a content header: two octets of flags or more, then the values of the flags that are set."""

from __future__ import annotations

from node.amqp.values import MalformedValue, check_table

#: Kinds of the properties from bit 15 down: short string, table, octet, timestamp (8 bytes).
_KINDS = "sstoossss8ssss"
_PROPERTY_COUNT = len(_KINDS)
_DELIVERY_MODE_POSITION = 3
_PERSISTENT = 2


def scan_properties(properties: bytes) -> bool:
    """Check that the list is well formed, without decoding it; true if the delivery mode says persistent.

    So is the headers table: what nobody can read would end each client that consumes it, one after the other. Raises
    `MalformedValue`.
    """
    if len(properties) < 2:
        raise MalformedValue("the property flags are missing")
    flags = properties[0] << 8 | properties[1]
    if flags & 3:
        raise MalformedValue("unknown property flags")
    at = 2
    end = len(properties)
    persistent = False
    for position in range(_PROPERTY_COUNT):
        if not flags & 0x8000 >> position:
            continue
        if at >= end:
            raise MalformedValue("a property is missing")
        kind = _KINDS[position]
        if kind == "s":
            at += 1 + properties[at]
        elif kind == "t":
            at = check_table(properties, at)
        elif kind == "8":
            at += 8
        else:
            if position == _DELIVERY_MODE_POSITION:
                persistent = properties[at] == _PERSISTENT
            at += 1
    if at != end:
        raise MalformedValue("the property list has the wrong size")
    return persistent
