"""Programs that mean harm, by what they are after, and what must become of each.

A program prints GOT when it got what it wanted. ``{outside}`` is a folder with a file ``secret``
that says ``hidden``, ``{port}`` a port of this machine at which something listens. ``call`` makes a
system call by its name.
"""

from __future__ import annotations

from typing import NamedTuple

#: What stands before each program, with the numbers of the machine's calls.
BEFORE = """
import ctypes, os, sys
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = {numbers!r}
def call(name, *arguments):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    found = _libc.syscall(ctypes.c_long(_numbers[name]), *given)
    if found < 0:
        raise OSError(ctypes.get_errno(), name)
    return found
"""


class Hostile(NamedTuple):
    """A program, and the verdicts that are right; ``raised``: what it tried was refused."""

    kind: str
    text: str
    verdicts: str = "raised"


def _rows(kind: str, *texts: str, verdicts: str = "raised") -> list[Hostile]:
    return [Hostile(kind, text, verdicts) for text in texts]


#: Each raises at once where it is refused, so that many run in one process.
REFUSED = [
    *_rows(
        "processes",
        "os.fork()",
        "os.forkpty()",
        "call('clone', 17, 0, 0, 0, 0)",
        "call('clone', 0x10010f00 | 0x20000000, 0, 0, 0, 0)",
        "call('clone3', bytes(88), 88)",
        "os.execv('/bin/sh', ['sh', '-c', 'echo GOT'])",
        "call('execveat', -100, b'/bin/true', None, None, 0)",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "assert os.system('true') == 0",
        "import subprocess; subprocess.run(['/bin/true'], check=True)",
        "import multiprocessing as m; p = m.Process(target=print); p.start(); p.join()",
        "call('unshare', 0x10000000)",
        "call('setns', 0, 0)",
        "call('ptrace', 16, os.getppid(), 0, 0)",
        "call('ptrace', 0, 0, 0, 0)",
    ),
    *_rows(
        "other processes",
        "os.kill(os.getppid(), 9)",
        "os.kill(1, 15)",
        "os.kill(-1, 9)",
        "os.killpg(0, 9)",
        "call('tkill', os.getppid(), 9)",
        "call('tgkill', os.getppid(), os.getppid(), 9)",
        "call('rt_sigqueueinfo', os.getppid(), 9, bytes(128))",
        "call('rt_tgsigqueueinfo', os.getppid(), os.getppid(), 9, bytes(128))",
        "os.pidfd_open(os.getppid())",
        "call('pidfd_send_signal', 0, 9, None, 0)",
        "call('pidfd_getfd', 0, 0, 0)",
        "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.sched_setaffinity(os.getppid(), {0})",
        "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
        "call('ioprio_set', 1, os.getppid(), 0)",
        "call('process_vm_readv', os.getppid(), bytes(16), 1, bytes(16), 1, 0)",
        "call('process_vm_writev', os.getppid(), bytes(16), 1, bytes(16), 1, 0)",
        "call('kcmp', os.getpid(), os.getppid(), 0, 0, 0)",
        "import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())",
        "call('prctl', 1, 0, 0, 0, 0)",
        "call('prctl', 4, 1, 0, 0, 0)",
        "call('prctl', 0x59616d61, -1, 0, 0, 0)",
        "os.setpgid(0, os.getppid())",
        "call('setsid')",
    ),
    *_rows(
        "network",
        "import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import socket; socket.socket(socket.AF_INET6)",
        "import socket; socket.socket(socket.AF_UNIX).bind('s')",
        "import socket; socket.socket(16, socket.SOCK_RAW)",
        "import socket; socket.socket(socket.AF_VSOCK)",
        "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "import socket; a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])",
        "import fcntl, socket\n"
        "ends = [fcntl.fcntl(e, fcntl.F_DUPFD, 60) for e in socket.socketpair()]\n"
        "for n in range(4, 60):\n os.dup2(ends[0], n)\n s = socket.socket(fileno=n)\n"
        " try: socket.send_fds(s, [b'x'], [0]); break\n except PermissionError: s.close()\n"
        "else:\n for e in ends: os.close(e)\n raise OSError",
        "import socket; a, b = socket.socketpair(); a.sendto(b'x', '\\0name')",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}', timeout=1)",
        "call('io_uring_setup', 8, bytes(120))",
    ),
    *_rows(
        "files of others",
        "print('GOT', open('{outside}/secret').read())",
        "print('GOT', os.listdir('{outside}'))",
        "print('GOT', open('/etc/passwd').read())",
        "print('GOT', open('/etc/shadow').read())",
        "print('GOT', open('/proc/self/environ').read())",
        "print('GOT', open('/proc/1/environ').read())",
        "open('/proc/self/mem', 'r+b')",
        "open('/proc/%d/mem' % os.getppid(), 'rb')",
        "open('/sys/kernel/mm/ksm/run', 'w')",
        "open('/dev/kmsg', 'w')",
        "open('/dev/shm/made', 'w')",
        "open('{outside}/made', 'w')",
        "open('{outside}/secret', 'a')",
        "open('../made', 'w')",
        "os.mkdir('{outside}/made')",
        "os.symlink('{outside}', 'link1'); open('link1/made', 'w')",
        "os.rename('program.py', '{outside}/made')",
        "os.link('{outside}/secret', 'taken')",
        "os.remove('{outside}/secret')",
        "os.chmod('{outside}/secret', 0o777)",
        "os.chmod(os.__file__, 0o777)",
        "f = os.open(os.__file__, os.O_RDONLY); os.fchmod(f, 0o777)",
        "os.utime('{outside}/secret', (1, 1))",
        "os.utime(os.__file__, (1, 1))",
        "os.utime('/usr', (1, 1))",
        "os.setxattr('{outside}/secret', 'user.a', b'1')",
        "os.setxattr(os.__file__, 'user.a', b'1')",
        "os.removexattr(os.__file__, 'user.a')",
        "os.chown('{outside}/secret', 1, 1)",
        "os.chown('program.py', 1, 1)",
        "os.truncate('{outside}/secret', 0)",
        "os.truncate(os.__file__, 0)",
        "os.open('{outside}/secret', os.O_RDONLY | os.O_TRUNC)",
        "os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)",
        "os.open(os.__file__, os.O_RDWR)",
        "os.mknod('device', 0o60600, os.makedev(8, 0))",
        "os.mkfifo('fifo')",
        "os.chroot('.')",
        "call('mount', b'none', b'.', b'tmpfs', 0, None)",
        "call('umount2', b'/', 2)",
        "call('pivot_root', b'.', b'.')",
        "call('open_by_handle_at', -100, bytes(64), 0)",
        "call('name_to_handle_at', -100, b'/', bytes(64), bytes(8), 0)",
        "call('fanotify_init', 0, 0)",
        "call('inotify_init1', 0)",
        "os.memfd_create('hidden')",
        "call('memfd_secret', 0)",
        "call('swapon', b'program.py', 0)",
        "call('acct', b'program.py')",
        "call('sync')",
    ),
    *_rows(
        "the kernel",
        "call('bpf', 0, bytes(64), 64)",
        "call('perf_event_open', bytes(128), 0, -1, -1, 0)",
        "call('keyctl', 0, -3, 0, 0, 0)",
        "call('add_key', b'user', b'a', b'b', 1, -3)",
        "call('request_key', b'user', b'a', None, -3)",
        "call('userfaultfd', 0)",
        "call('kexec_load', 0, 0, None, 0)",
        "call('init_module', None, 0, b'')",
        "call('delete_module', b'x', 0)",
        "call('reboot', 0, 0, 0, None)",
        "call('settimeofday', bytes(16), None)",
        "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
        "call('adjtimex', bytes(208))",
        "call('sethostname', b'x', 1)",
        "call('syslog', 10, None, 0)",
        "call('seccomp', 1, 0, bytes(16))",
        "call('personality', 0x40000)",
        "call('shmget', 0, 1 << 30, 0o1600)",
        "call('msgget', 0, 0o1600)",
        "call('semget', 0, 1, 0o1600)",
        "call('mq_open', b'a', 0o102, 0o600, None)",
        "call('vmsplice', 1, None, 0, 0)",
        "call('setuid', 0)",
        "call('setgid', 0)",
        "call('setgroups', 0, None)",
        "call('capset', bytes([0x22, 5, 8, 0x20, 0, 0, 0, 0]), b'\\xff' * 24)",
        "call('landlock_create_ruleset', None, 0, 1)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1 << 20, 1 << 20))",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    ),
]
_TIME = "time"
#: What uses up something; each runs alone.
GREEDY = [
    *_rows(
        "processor time",
        "while True: pass",
        "os.close(1); os.close(2)\nwhile True: pass",
        "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
        "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\n"
        "signal.signal(signal.SIGPROF, signal.SIG_IGN)\nsignal.signal(signal.SIGXCPU, "
        "signal.SIG_IGN)\nwhile True: pass",
        "import threading\ndef f():\n while True: pass\n"
        "for _ in range(3): threading.Thread(target=f).start()",
        "10 ** 10 ** 8",
        "import atexit\ndef f():\n while True: pass\natexit.register(f)",
        "while True:\n try: os.fork()\n except OSError: pass",
        "class A:\n def __del__(self):\n  while True: pass\na = A(); del a",
        "import sys\nsys.settrace(lambda *a: None)\n"
        "while True:\n try:\n  while True: pass\n except BaseException: pass",
        verdicts=_TIME,
    ),
    *_rows(
        "time by the clock",
        "import time; time.sleep(600)",
        "import signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import threading; threading.Event().wait()",
        "r, w = os.pipe(); os.read(r, 1)",
        "import signal; signal.pause()",
        verdicts=_TIME,
    ),
    *_rows(
        "memory",
        "x = bytearray(1 << 30)",
        "x = []\nwhile True: x.append(bytes(1 << 20))",
        "x = 'x' * (1 << 40)",
        "x = [[]] * (1 << 40)",
        verdicts="memory",
    ),
    *_rows(
        "memory",
        "import mmap; x = [mmap.mmap(-1, 1 << 26) for _ in range(99)]; print('GOT')",
        "f = open('/dev/zero', 'rb'); f.read()",
        "import threading\nthreading.stack_size(32768)\ne = threading.Event()\ndone = 0\n"
        "for _ in range(5000): threading.Thread(target=e.wait, daemon=True).start()\nprint('GOT')",
        "fs = [os.pipe() for _ in range(200)]; print('GOT')",
        "import fcntl; r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); print('GOT')",
        verdicts="raised memory time",
    ),
    *_rows(
        "files",
        "while True:\n try: open(os.urandom(8).hex(), 'w').close()\n except OSError: pass",
        "while True:\n try: os.mkdir(os.urandom(8).hex())\n except OSError: pass",
        "for i in range(30000): os.mkdir(str(i))\nprint('GOT')",
        "for i in range(30000): os.symlink('x', str(i))\nprint('GOT')",
        "open('a', 'w')\nfor i in range(30000): os.link('a', str(i))\nprint('GOT')",
        "for i in range(5000): os.mkdir('d'); os.chdir('d')\nprint('GOT')",
        "for i in range(25): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "for i in range(64): open(str(i), 'wb').write(bytes(65536))\nprint('GOT')",
        "for i in range(5000): os.mkdir('d', 0o300); os.chdir('d')\nprint('GOT')",
        "for i in range(40): open(str(i), 'wb').write(bytes(65536))\nprint('GOT')",
        verdicts="files raised",
    ),
    *_rows(
        "size of a file",
        "open('big', 'wb').write(bytes(1 << 22)); print('GOT')",
        "f = open('big', 'wb'); f.seek(1 << 40); f.write(b'x'); f.flush(); print('GOT')",
        "f = open('big', 'wb'); os.posix_fallocate(f.fileno(), 0, 1 << 30); print('GOT')",
        "f = open('big', 'wb'); call('fallocate', f.fileno(), 1, 0, 1 << 30); print('GOT')",
        "f = open('big', 'wb'); f.truncate(1 << 40); print('GOT')",
        "f = os.open('.', 0o20200000 | os.O_RDWR); os.write(f, bytes(1 << 16)) == 1 << 16\n"
        "for _ in range(99): assert os.write(f, bytes(1 << 16))\nprint('GOT')",
        "os.write(0, b'x' * 100); print('GOT')",
        "os.ftruncate(0, 1 << 30); print('GOT')",
        verdicts="raised files",
    ),
    *_rows(
        "output",
        "while True: print('x' * 1000)",
        "while True: os.write(1, b'x' * 65536)",
        "print('x' * (1 << 28))",
        verdicts="output memory",
    ),
    *_rows("output", "while True: sys.stderr.write('x' * 1000)", verdicts=_TIME),
    *_rows(
        "the end of the process",
        "raise SystemExit(3)",
        "os._exit(3)",
        "def f(): return f()\nf()",
        "syntax error",
        "\0",
        "import sys; sys.stdout.close(); raise KeyboardInterrupt",
    ),
    *_rows(
        "the end of the process",
        "os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "import signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(x): return f([x])\nf(1)",
        "_libc.syscall(0x40000000 + 39)",
        # A call of the 32-bit machine within this one: its getpid.
        "import mmap; m = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "print('GOT', f())",
        verdicts="killed memory raised time",
    ),
]
#: Programs that are asked for ``add(1, 2)``, which is 3, and try to be right without it.
FORGERS = [
    "class A:\n def __eq__(self, other): return True\n __ne__ = None\ndef add(a, b): return A()",
    "class A(int):\n def __eq__(self, other): return True\n def __hash__(self): return 3\n"
    "def add(a, b): return A(4)",
    "class A(list):\n def __eq__(self, other): return True\ndef add(a, b): return A([4])",
    "class A(dict):\n def __eq__(self, other): return True\ndef add(a, b): return A()",
    "class A:\n dtype = 'int64'\n def tolist(self): return self\n"
    " def __eq__(self, other): return True\n"
    "def add(a, b): return A()",
    "def add(a, b): return True",
    "def add(a, b): return '3'",
    "def add(a, b): return float('nan')",
    "def add(a, b): return 10 ** 100000",
    "def add(a, b): return 10 ** 1000000 + 3",
    "def add(a, b):\n x = []\n for _ in range(100000): x = [x]\n return x",
    "def add(a, b):\n x = []; x.append(x); return x",
    "def add(a, b): return {1: 3, '1': 3}",
    "def add(a, b): return '\\ud800'",
    "def add(a, b): return 'x' * 10 ** 7",
    "def add(a, b):\n while True: yield 3",
    "def add(a, b): raise SystemExit(0)",
    "def add(a, b): import os; os._exit(0)",
    "raise SystemExit(0)",
    "import os; os._exit(0)",
    "def add(a, b): raise AssertionError",
    "def add(a, b): raise KeyboardInterrupt",
    "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.callable = bool\n"
    "def add(a, b): return 4",
    "import json\njson.dumps = lambda *a, **k: '3'\ndef add(a, b): return 4\nadd = None",
    "import sys, os\nfor f in range(3, 20):\n try: os.write(f, b'true')\n except OSError: pass\n"
    "os._exit(0)",
    "import os\nfor f in range(3, 20):\n try: os.write(f, b'\\xff\\xfe{not json')\n"
    " except OSError: pass\nos._exit(0)",
    'import os\nfor f in range(3, 20):\n try: os.write(f, b\'{"a":1,"a":2}\\n\' * 9)\n'
    " except OSError: pass\nos._exit(0)",
    "import os\nfor f in range(3, 20):\n try: os.write(f, b'[' * 60000)\n"
    " except OSError: pass\nos._exit(0)",
    "import os\nfor f in range(3, 20):\n try: os.write(f, b'9' * 60000)\n"
    " except OSError: pass\nos._exit(0)",
    'import os\nfor f in range(3, 20):\n try: os.write(f, b\'{"value": {"tuple": 3}}\\n\' * 9)\n'
    " except OSError: pass\nos._exit(0)",
    'import os\nfor f in range(3, 20):\n try: os.write(f, b\'{"raised": "SystemExit"}\\n\' * 9)\n'
    " except OSError: pass\nos._exit(0)",
    "import os\nfor f in range(3, 20):\n try: os.close(f)\n except OSError: pass\n"
    "def add(a, b): return 4",
    "import os\nos.dup2(1, 3)\ndef add(a, b): print('3'); return 4",
    "import sys\nfor m in list(sys.modules): sys.modules[m] = None\ndef add(a, b): return 4",
    "import os\ndef add(a, b):\n for top, folders, names in os.walk('/'):\n"
    "  folders[:] = [f for f in folders if f not in ('usr', 'lib', 'root', 'opt', 'proc', 'sys')]\n"
    "  for name in names:\n   try: text = open(os.path.join(top, name)).read(4096)\n"
    "   except OSError: continue\n"
    "   if 'add(1, 2) == ' in text and 'os.walk' not in text: return int(text[-1])\n return 4",
    "def add(a, b): return add",
    "def add(a, b): return print",
    "def add(a, b):\n import sys\n f = sys._getframe()\n while f:\n"
    "  for v in f.f_locals.values():\n   if v == 3: return 4\n  f = f.f_back\n return 4",
    "add = 3",
    "add = type('Add', (), {'__call__': lambda *a: 4, '__eq__': lambda *a: True})()",
    "class add:\n def __init__(self, *a): pass\n def __eq__(self, o): return True",
]
