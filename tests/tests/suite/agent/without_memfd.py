"""Runs a program that the kernel gives no memory of its own kind to: memfd_create fails in it."""

import ctypes
import os
import struct
import sys

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NOT_PERMITTED, ALLOW = 0x00050001, 0x7FFF0000
SET_SECCOMP, FILTER, SET_NO_NEW_PRIVS = 22, 2, 38

number = {"x86_64": 319, "aarch64": 279}[os.uname().machine]
steps = [
    (LOAD, 0, 0, 0),
    (JUMP_IF_EQUAL, 0, 1, number),
    (RETURN, 0, 0, NOT_PERMITTED),
    (RETURN, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, FILTER, program, 0, 0):
    sys.exit("no filter: " + os.strerror(ctypes.get_errno()))
try:
    os.memfd_create("refused")
except PermissionError:
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit("the filter refuses nothing")
