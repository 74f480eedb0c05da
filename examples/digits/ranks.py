"""The ranks of a job step: who am I, how do we meet, how do we add up arrays? Only sockets and NumPy."""

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

START = "start the ranks with srun, as train.sh does"


class JobError(Exception):
    """What went wrong, in a sentence for the user."""

    exit_code = 1


class StartError(JobError):
    """This process was not started as a rank of a job step."""

    exit_code = 2


@dataclass(frozen=True)
class Place:
    """This process among its peers."""

    rank: int  # 0 .. size-1 over all nodes
    size: int
    local_rank: int  # 0 .. on this node; picks the GPU
    node: str
    nodes: int
    gpu: str  # as Slurm names it, "-" without one
    meeting: Path  # the file by which rank 0 tells the others how to reach it

    @classmethod
    def from_slurm(cls, env=os.environ):
        """The place that srun gave this process; outside srun, the only rank there is."""

        def number(name, default):
            text = env.get(name, default)
            if not text.isdecimal():
                raise StartError(f"{name}={text!r} is not a number: {START}")
            return int(text)

        # Not SLURM_NTASKS: a batch script sees that too, and is one process.
        size = number("SLURM_STEP_NUM_TASKS", "1")
        rank = number("SLURM_PROCID", "0")
        if rank >= size:
            raise StartError(f"SLURM_PROCID={rank} cannot be among {size} ranks: {START}")
        local_rank = number("SLURM_LOCALID", "0")
        gpus = [gpu for gpu in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        # A requeued job keeps its id: the restart count tells its file from that of the run before.
        step = "-".join(env.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            node=env.get("SLURMD_NODENAME") or socket.gethostname(),
            nodes=number("SLURM_STEP_NUM_NODES", "1"),
            gpu=gpus[local_rank % len(gpus)] if gpus else "-",
            meeting=Path(f".digits-{step}.json"),
        )


class Star:
    """All ranks, connected through rank 0. `sum` adds up an array over them; all get the same bytes back.

    Right for some ten thousand numbers on a few ranks. Beyond that rank 0's network card is the bottleneck,
    which the rings of NCCL and gloo are there to avoid.

    The ranks meet by a file in a directory that all nodes share: no node name has to resolve, no fixed port
    has to be free. Rank 0's port is open to the whole network, so both ends prove that they know the token in
    the file, which only the job's user can read. Raises JobError when a rank does not come or is lost.
    """

    FRAME = struct.Struct("<QQ")  # number of this sum, bytes that follow (little-endian float64)

    def __init__(self, rank, size, meeting, timeout=60.0):
        self.rank, self.size, self.meeting, self.timeout = rank, size, Path(meeting), timeout
        self.sums = 0
        self.peers = {}  # rank -> socket: rank 0 has all the others, the others have rank 0
        if size > 1:
            deadline = time.monotonic() + timeout
            self._welcome(deadline) if rank == 0 else self._join(deadline)
        for peer in self.peers.values():
            peer.settimeout(timeout)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def root(self):
        """The address at which this rank reaches rank 0."""
        return self.peers[0].getpeername()[0] if self.rank else "127.0.0.1"

    def sum(self, values):
        """The sum of `values` over all ranks, which must pass the same shape; float64."""
        total = np.array(values, dtype="<f8")
        self.sums += 1
        if self.rank == 0:
            for rank in sorted(self.peers):  # in a fixed order, on which the rounding of a sum depends
                total += self._receive(rank, total)
        for rank in self.peers:
            self._send(rank, total)
        return self._receive(0, total) if self.rank else total

    def close(self):
        for peer in self.peers.values():
            peer.close()

    def _send(self, rank, values):
        with self._watch(rank):
            self.peers[rank].sendall(self.FRAME.pack(self.sums, values.nbytes) + values.tobytes())

    def _receive(self, rank, like):
        with self._watch(rank):
            frame = self.FRAME.unpack(receive(self.peers[rank], self.FRAME.size))
            if frame != (self.sums, like.nbytes):
                theirs, ours = "sum {} of {} bytes".format(*frame), f"sum {self.sums} of {like.nbytes} bytes"
                raise JobError(f"rank {rank} is out of step: at {theirs}, this rank at {ours}")
            return np.frombuffer(receive(self.peers[rank], like.nbytes), "<f8").reshape(like.shape)

    @contextlib.contextmanager
    def _watch(self, rank):
        try:
            yield
        except OSError as error:
            silent = isinstance(error, TimeoutError)
            why = f"nothing came for {self.timeout:g} s" if silent else error.strerror or error
            raise JobError(f"lost rank {rank} ({why}): the cause is on that rank") from error

    def _welcome(self, deadline):
        token = secrets.token_bytes(32)
        with socket.create_server(("", 0), backlog=self.size) as server:
            meeting = {"hosts": own_addresses(), "port": server.getsockname()[1], "token": token.hex()}
            publish(self.meeting, meeting)
            try:
                while missing := set(range(1, self.size)) - set(self.peers):
                    server.settimeout(max(deadline - time.monotonic(), 0.001))
                    try:
                        peer, _ = server.accept()
                    except TimeoutError:
                        names = ", ".join(map(str, sorted(missing)))
                        raise JobError(f"waited {self.timeout:g} s, rank {names} did not come") from None
                    try:
                        self.peers[admit(peer, token, missing)] = peer
                    except OSError:  # a stranger, a port scanner
                        peer.close()
            finally:
                self.meeting.unlink(missing_ok=True)

    def _join(self, deadline):
        why = None
        while time.monotonic() < deadline:  # NFS may take 30 s to show a new file
            try:
                meeting = json.loads(self.meeting.read_text())
                token = bytes.fromhex(meeting["token"])
                for host in meeting["hosts"]:
                    try:
                        self.peers[0] = call((host, meeting["port"]), self.rank, token)
                        return
                    except OSError as error:
                        why = f"{host} port {meeting['port']}: {error.strerror or error}"
            except FileNotFoundError:
                why = why or "it is not there; do all nodes share its directory?"
            time.sleep(0.1)
        file = self.meeting.absolute()
        raise JobError(f"waited {self.timeout:g} s, found no way to rank 0 by {file} ({why})")


def publish(path, content):
    """Write `content` so that readers see all of it or nothing, and nobody but this user sees any."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            json.dump(content, file)
        Path(file.name).replace(path)
    except OSError as error:
        raise JobError(f"the ranks meet by {path.absolute()}, which fails: {error.strerror}") from error


def own_addresses():
    """Where other nodes may reach this one, the likeliest first; the token tells which are wrong."""
    guesses = [socket.gethostname(), "127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 9))  # sends nothing; the kernel picks the address it would send from
        guesses.insert(0, probe.getsockname()[0])
    return guesses


def call(address, rank, token):
    """A connection to rank 0, each end having proved to the other that it knows the token; OSError if not."""
    with contextlib.ExitStack() as on_error:
        peer = on_error.enter_context(socket.create_connection(address, timeout=5))
        nonce = secrets.token_bytes(16)
        peer.sendall(struct.pack("<I16s", rank, nonce))
        challenge, answer = struct.unpack("<16s32s", receive(peer, 48))
        if not hmac.compare_digest(answer, proof(token, 0, nonce)):
            raise ConnectionError("what answers there is not rank 0 of this job")
        peer.sendall(proof(token, rank, challenge))
        on_error.pop_all()
    return peer


def admit(peer, token, expected):
    """The other end of `call`: the rank that calls; OSError for a stranger."""
    peer.settimeout(5)
    rank, nonce = struct.unpack("<I16s", receive(peer, 20))
    challenge = secrets.token_bytes(16)
    peer.sendall(challenge + proof(token, 0, nonce))
    if not hmac.compare_digest(receive(peer, 32), proof(token, rank, challenge)) or rank not in expected:
        raise ConnectionError("not a rank of this job")
    return rank


def proof(token, rank, nonce):
    """What only a holder of the token can answer to `nonce`; the rank keeps it from being used by another."""
    return hmac.digest(token, rank.to_bytes(4, "little") + nonce, "sha256")


def receive(peer, size):
    """Exactly `size` bytes."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = peer.recv_into(rest)
        if not count:
            raise ConnectionError("it closed the connection")
        rest = rest[count:]
    return data
