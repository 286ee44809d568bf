"""XXH3 with 64 bits, without a seed: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md."""

import struct

MASK = 2**64 - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def xxh3(data):
    if len(data) > 240:
        return _long(data)
    if len(data) <= 16:
        return _short(data)
    total = len(data) * P64[0]
    if len(data) <= 128:
        for i in range((len(data) + 31) // 32):
            total += _mixed(data, 16 * i, 32 * i) + _mixed(data, len(data) - 16 * (i + 1), 32 * i + 16)
        return _avalanche(total)
    total = _avalanche(total + sum(_mixed(data, 16 * i, 16 * i) for i in range(8)))
    total += sum(_mixed(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, len(data) // 16))
    return _avalanche(total + _mixed(data, len(data) - 16, 119))


def _short(data):
    length = len(data)
    if length > 8:
        keys = struct.unpack_from("<4Q", SECRET, 24)
        low = struct.unpack_from("<Q", data)[0] ^ keys[0] ^ keys[1]
        high = struct.unpack_from("<Q", data, length - 8)[0] ^ keys[2] ^ keys[3]
        return _avalanche(length + int.from_bytes(low.to_bytes(8, "little"), "big") + high + _folded(low, high))
    if length > 3:
        keys = struct.unpack_from("<2Q", SECRET, 8)
        first, last = struct.unpack_from("<I", data)[0], struct.unpack_from("<I", data, length - 4)[0]
        value = (last + (first << 32)) ^ keys[0] ^ keys[1]
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * 0x9FB21C651E98DF25 & MASK
        value = (value ^ (value >> 35) + length) * 0x9FB21C651E98DF25 & MASK
        return value ^ value >> 28
    if length > 0:
        keys = struct.unpack_from("<2I", SECRET)
        value = (data[0] << 16 | data[length // 2] << 24 | data[-1] | length << 8) ^ keys[0] ^ keys[1]
    else:
        keys = struct.unpack_from("<2Q", SECRET, 56)
        value = keys[0] ^ keys[1]
    value = (value ^ value >> 33) * P64[1] & MASK
    value = (value ^ value >> 29) * P64[2] & MASK
    return value ^ value >> 32


def _rotated(value, bits):
    return (value << bits | value >> 64 - bits) & MASK


def _long(data):
    lanes = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]
    stripes = (len(data) - 1) // 64
    for stripe in range(stripes):
        _accumulate(lanes, data, 64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:  # the end of a block
            keys = struct.unpack_from("<8Q", SECRET, 128)
            lanes[:] = [((lane ^ lane >> 47 ^ key) * P32[0]) & MASK for lane, key in zip(lanes, keys)]
    _accumulate(lanes, data, len(data) - 64, 121)
    keys = struct.unpack_from("<8Q", SECRET, 11)
    total = sum(_folded(lanes[i] ^ keys[i], lanes[i + 1] ^ keys[i + 1]) for i in range(0, 8, 2))
    return _avalanche(total + len(data) * P64[0])


def _accumulate(lanes, data, at, key_at):
    values, keys = struct.unpack_from("<8Q", data, at), struct.unpack_from("<8Q", SECRET, key_at)
    for i, (value, key) in enumerate(zip(values, keys)):
        lanes[i ^ 1] += value
        lanes[i] += ((value ^ key) & 0xFFFFFFFF) * ((value ^ key) >> 32)
    lanes[:] = [lane & MASK for lane in lanes]


def _mixed(data, at, key_at):
    low, high = struct.unpack_from("<2Q", data, at)
    low_key, high_key = struct.unpack_from("<2Q", SECRET, key_at)
    return _folded(low ^ low_key, high ^ high_key)


def _folded(a, b):
    return (a * b & MASK) ^ (a * b >> 64)


def _avalanche(value):
    value &= MASK
    value = (value ^ value >> 37) * 0x165667919E3779F9 & MASK
    return value ^ value >> 32
