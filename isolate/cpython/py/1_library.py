# What most code imports is imported while the image is made, so that it costs
# a call nothing. This script is one file with the ones after it.
import sys, os, io, time, gc
# Code may change every builtin; these names stay what they are here.
from builtins import *
import abc, argparse, array, ast, asyncio, atexit, base64, binascii, bisect, builtins, bz2, calendar, cmath, codecs
import collections, collections.abc, colorsys, concurrent.futures, configparser, contextlib, contextvars, copy, csv
import dataclasses, datetime, decimal, difflib, dis, email, email.message, email.parser, email.policy, email.utils, enum
import errno, fnmatch, fractions, functools, getpass, glob, graphlib, gzip, hashlib, heapq, hmac, html, html.parser
import http, http.client, importlib, importlib.abc, importlib.machinery, importlib.resources, importlib.util, inspect
import ipaddress, itertools, json, keyword, linecache, locale, logging, marshal, math, mimetypes, numbers, operator
import pathlib, pickle, platform, pprint, queue, quopri, random, re, reprlib, sched, secrets, select, selectors, shelve
import shlex, shutil, signal, socket, sqlite3, stat, statistics, string, struct, subprocess, symtable, tempfile
import textwrap, threading, timeit, token, tokenize, tomllib, traceback, types, typing, unicodedata, unittest, urllib
import urllib.error, urllib.parse, urllib.request, uuid, warnings, weakref, xml.dom.minidom, xml.etree.ElementTree
import xml.sax, zipfile, zlib, zoneinfo
import encodings.ascii, encodings.cp1252, encodings.idna, encodings.latin_1, encodings.utf_8_sig, encodings.utf_16

# Processor time is the monotonic clock, as the host's functions have it. The
# interpreter would read it in ticks of another length.
time.process_time, time.process_time_ns = time.monotonic, time.monotonic_ns


def _times():
    now = time.monotonic()
    return os.times_result((now, 0.0, 0.0, 0.0, now))


os.times = sys.modules['posix'].times = _times
