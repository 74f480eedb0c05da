-- wire.lua: one question and one answer over a Unix socket, within a deadline.

local json, config = ...

local M = {}

local PROTOCOL, ANSWER_LIMIT = 1, 64 * 1024

local socket = require("posix.sys.socket")
local poll = require("posix.poll")
local errno = require("posix.errno")
local fcntl = require("posix.fcntl")
local unistd = require("posix.unistd")
local stat = require("posix.sys.stat")
local time = require("posix.time")

local connection = { fd = nil, buffer = "" }
local clock_gettime, MONOTONIC = time.clock_gettime, time.CLOCK_MONOTONIC

function M.now()
  local at = clock_gettime(MONOTONIC)
  return at.tv_sec + at.tv_nsec * 1e-9
end
local now = M.now

function M.close()
  if connection.fd then
    unistd.close(connection.fd)
  end
  connection.fd, connection.buffer = nil, ""
end
local close = M.close

-- slurmctld throws the whole Lua state away when job_submit.lua is touched: the descriptor must go with it.
local newproxy = rawget(_G, "newproxy") -- a site's strict.lua raises for a global that is none
local keeper
if newproxy then -- Lua 5.1 finalises userdata only
  keeper = newproxy(true)
  getmetatable(keeper).__gc = close
else
  keeper = setmetatable({}, { __gc = close })
end
M.keeper = keeper

-- Read from the file, not from the directory service: that may take seconds, and slurmctld's locks are held.
local function uid_of(name)
  local file = io.open("/etc/passwd")
  if not file then
    return nil
  end
  for line in file:lines() do
    local uid = string.match(line, "^" .. name .. ":[^:]*:(%d+):")
    if uid then
      file:close()
      return tonumber(uid)
    end
  end
  file:close()
  return nil
end

local function check_socket(path)
  local found = stat.lstat(path)
  if not found then
    return nil, "no socket " .. path
  elseif stat.S_ISSOCK(found.st_mode) == 0 then
    return nil, path .. " is not a socket"
  elseif math.floor(found.st_mode / 2) % 2 == 1 then
    return nil, path .. " may be written by everybody"
  end
  local uid = found.st_uid
  if uid == 0 or uid == config.owner or uid == unistd.geteuid() or uid == uid_of("gsub") then
    return true
  end
  return nil, string.format("%s belongs to uid %d, which is not gsub's", path, uid)
end

local function connect()
  local fine, why = check_socket(config.socket)
  if not fine then
    return nil, why
  end
  local fd, problem = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)
  if not fd then
    return nil, problem
  end
  connection.fd, connection.buffer = fd, ""
  fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
  fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.O_NONBLOCK)
  fine, problem = socket.connect(fd, { family = socket.AF_UNIX, path = config.socket })
  if not fine then -- a full backlog too: a local socket either connects at once or not at all
    close()
    return nil, "cannot connect to " .. config.socket .. ": " .. tostring(problem)
  end
  return true
end

-- Wait until the socket can be read or written. False at the deadline.
local function wait(what, deadline)
  local left = deadline - now()
  if left <= 0 then
    return false
  end
  local ready = poll.poll({ [connection.fd] = { events = { [what] = true } } }, math.ceil(left * 1000))
  return ready ~= 0 -- nil: a signal came; whoever waits tries again
end

local function passing(number)
  return number == errno.EAGAIN or number == errno.EWOULDBLOCK or number == errno.EINTR
end

local LATE, CLOSED = "no answer in time", "the service closed the connection"
M.LATE = LATE

local function send(line, deadline)
  local at = 1
  while at <= #line do
    local sent, problem, number = socket.send(connection.fd, at == 1 and line or string.sub(line, at))
    if sent then
      at = at + sent
    elseif not passing(number) then
      return nil, (number == errno.EPIPE or number == errno.ECONNRESET) and CLOSED or problem
    elseif not wait("OUT", deadline) then
      return nil, LATE
    end
  end
  return true
end

-- Take what has arrived into the buffer. True: something, or nothing yet.
local function take()
  local bytes, problem, number = socket.recv(connection.fd, 16384)
  if bytes == "" then
    return nil, CLOSED
  elseif bytes then
    connection.buffer = connection.buffer .. bytes
    return true
  elseif passing(number) then
    return false
  end
  return nil, number == errno.ECONNRESET and CLOSED or problem
end

-- The answer to question `id`: a table. Lines about anything else are left behind.
local function receive(id, deadline)
  local seen = 0
  while true do
    local stop = string.find(connection.buffer, "\n", 1, true)
    if stop then
      local line = string.sub(connection.buffer, 1, stop - 1)
      connection.buffer = string.sub(connection.buffer, stop + 1)
      seen = seen + #line
      local answer, why = json.decode(line)
      if type(answer) ~= "table" or answer.v ~= PROTOCOL then -- a list or null has no v
        return nil, "an answer that is none: " .. (why or "wrong version")
      elseif answer.id == id then
        return answer
      end
    elseif seen + #connection.buffer > ANSWER_LIMIT then
      return nil, "an answer that is too long"
    else
      local taken, why = take()
      if taken == nil then
        return nil, why
      elseif not taken and not wait("IN", deadline) then
        return nil, LATE
      elseif now() >= deadline then
        return nil, LATE
      end
    end
  end
end

-- One try; the third value tells whether it was over a connection that was kept.
local function try(id, line, deadline)
  local kept = connection.fd ~= nil
  local answer, fine, why
  if kept then
    fine, why = take() -- also tells whether it is still open, so that a send cannot raise SIGPIPE
    fine = fine ~= nil
  else
    fine, why = connect()
  end
  if fine then
    fine, why = send(line, deadline)
  end
  if fine then
    answer, why = receive(id, deadline)
  end
  if not answer then
    close()
  end
  return answer, why, kept
end

-- One question, one answer, within the deadline. A kept connection that turns out to be closed (the service was
-- restarted) is replaced once, within the same deadline.
function M.ask(id, line)
  local deadline = now() + config.deadline
  local answer, why, kept = try(id, line, deadline)
  if not answer and kept and why == CLOSED then
    answer, why = try(id, line, deadline)
  end
  return answer, why
end

return M
