"""Runs a program that the kernel gives no huge pages to; its children inherit the denial."""

import ctypes
import os
import sys

DISABLE_HUGE_PAGES = 41

libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(DISABLE_HUGE_PAGES, 1, 0, 0, 0):
    sys.exit("no denial: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
