-- gsub.lua: asks gsub's decision service about a submission, and applies its answer.
--
-- Runs inside slurmctld, under its locks, for every job: so it can cost one deadline at most, it never raises, and it
-- returns slurm.SUCCESS unless the service rejects the job in enforce mode. Needs Lua 5.1 to 5.4 and lua-posix.
-- A site's own job_submit.lua loads it with three lines: see job_submit.lua beside this file, and docs/shim.md.

local M = {}

local PROTOCOL = 1
local REQUEST_LIMIT, ANSWER_LIMIT = 256 * 1024, 64 * 1024
local STRING_LIMIT, ENV_LIMIT, SCRIPT_LIMIT = 4096, 1024, 64 * 1024
local DEPTH_LIMIT = 6
local INTEGER_LIMIT = 2 ^ 53 -- Slurm's numbers come as doubles
local NO_VAL = { [8] = 0xfe, [16] = 0xfffe, [32] = 0xfffffffe, [64] = 2 ^ 53 }

-- What is sent of job_desc: Lua's name -> "text", or the width of the number in Slurm's job_desc_msg_t, which decides
-- the value that means "not set". Left out with intent: pn_min_memory (a flag in bit 63 of what Lua holds in a
-- double) and user_name (slurmctld would ask the machine's directory service, without a bound on the time).
M.FIELDS = {
  account = "text", admin_comment = "text", array_inx = "text", comment = "text", cpus_per_tres = "text",
  default_account = "text", dependency = "text", exc_nodes = "text", extra = "text", features = "text",
  licenses = "text", mem_per_tres = "text", name = "text", partition = "text", prefer = "text", qos = "text",
  req_nodes = "text", reservation = "text", tres_per_job = "text", tres_per_node = "text", tres_per_socket = "text",
  tres_per_task = "text", work_dir = "text",
  begin_time = 64, bitflags = 64, contiguous = 16, cores_per_socket = 16, cpus_per_task = 16, cron_job = 16,
  het_job_offset = 32, immediate = 16, max_cpus = 32, max_nodes = 32, min_cpus = 32, min_mem_per_cpu = 64,
  min_mem_per_node = 64, min_nodes = 32, ntasks_per_board = 16, ntasks_per_core = 16, ntasks_per_node = 16,
  ntasks_per_socket = 16, ntasks_per_tres = 16, num_tasks = 32, pn_min_cpus = 16, pn_min_tmp_disk = 32,
  req_switch = 32, requeue = 16, segment_size = 16, shared = 16, sockets_per_node = 16, threads_per_core = 16,
  time_limit = 32, time_min = 32, wait4switch = 32,
}

-- The variables of the job's environment that are read, and that an answer may set. The same as in
-- slurm_plugins/decide/steps.py; a test holds them equal.
M.ENV_NAMES = {
  "GSUB", "GSUB_REPACK", "GSUB_RETUNE", "GSUB_SMOKE", "GSUB_RUN_TIME", "GSUB_RESTART", "GSUB_DECISION",
  "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
  "SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
  "SLURM_GPUS_PER_SOCKET", "SLURM_NTASKS_PER_GPU", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU",
  "SLURM_TRES_PER_TASK", "SLURM_EXCLUSIVE", "SLURM_DISTRIBUTION", "SLURM_NNODES", "SLURM_JOB_NUM_NODES",
  "SLURM_THREADS_PER_CORE",
}
local ENV_VALUE = "^[%w_.,:()=/*+@%% -]*$"

-- What an answer may change: name -> kind, lowest and highest value or length, characters of a text. The same as
-- slurm_plugins/decide/edits.py; a test holds them equal. An answer with anything else is dropped whole.
local COUNT = { "int", 1, 65000 }
local TRES = { "text", 1, 256, "A-Za-z0-9_.:/=,-" }
local HOSTS = { "text", 1, 1000, "A-Za-z0-9_.,%[%]-" }
local FEATURES = { "text", 1, 1000, "A-Za-z0-9_.,:&|*=()%[%]-" }
M.EDITS = {
  min_nodes = COUNT, max_nodes = COUNT, num_tasks = { "int", 1, 10000000 }, ntasks_per_node = COUNT,
  shared = { "int", 0, 0 }, gres = TRES,
  cpus_per_task = COUNT, cpus_per_tres = TRES, min_cpus = { "int", 1, 10000000 }, pn_min_cpus = COUNT,
  min_mem_per_node = { "int", 1, 2 ^ 40 }, min_mem_per_cpu = { "int", 1, 2 ^ 40 }, mem_per_tres = TRES,
  req_switch = COUNT, wait4switch = { "int", 0, 31536000 }, segment_size = COUNT,
  features = FEATURES, prefer = FEATURES, exc_nodes = HOSTS,
  admin_comment = { "text", 1, 64, "A-Za-z0-9:-" },
}
-- Applied last: job_desc has one field for both, and what it was before cannot be written back through Lua.
local LAST = { min_mem_per_node = true, min_mem_per_cpu = true }

local MODES = { observe = true, advise = true, enforce = true }

local config = {
  socket = "/run/gsub/decision.sock",
  owner = nil, -- a uid that may own the socket, beside root, slurmctld's own user and the user gsub
  deadline = 0.050, -- seconds for all of: connect, send, receive
  failures = 3, -- in a row, until no more questions are asked for
  pause = 5, -- seconds
}

-- ---------------------------------------------------------------------------------------------------------- JSON

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }
for code = 0, 31 do
  local char = string.char(code)
  ESCAPES[char] = ESCAPES[char] or string.format("\\u%04x", code)
end
ESCAPES["\127"] = "\\u007f"

-- The length and code point of the UTF-8 sequence at `at`, nil where the bytes are none (Unicode 15, table 3-7).
local function sequence(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  local function more(byte, low, high)
    return byte ~= nil and byte >= (low or 0x80) and byte <= (high or 0xbf)
  end
  if a >= 0xc2 and a <= 0xdf and more(b) then
    return 2, (a - 0xc0) * 0x40 + b - 0x80
  end
  if a >= 0xe0 and a <= 0xef and more(b, a == 0xe0 and 0xa0, a == 0xed and 0x9f) and more(c) then
    return 3, (a - 0xe0) * 0x1000 + (b - 0x80) * 0x40 + c - 0x80
  end
  if a >= 0xf0 and a <= 0xf4 and more(b, a == 0xf0 and 0x90, a == 0xf4 and 0x8f) and more(c) and more(d) then
    return 4, (a - 0xf0) * 0x40000 + (b - 0x80) * 0x1000 + (c - 0x80) * 0x40 + d - 0x80
  end
  return nil
end

local function escape_run(bytes)
  local out, at = {}, 1
  while at <= #bytes do
    local length, code = sequence(bytes, at)
    if not length then
      out[#out + 1] = "\\ufffd"
    elseif code < 0x10000 then
      out[#out + 1] = string.format("\\u%04x", code)
    else
      code = code - 0x10000
      out[#out + 1] = string.format("\\u%04x\\u%04x", 0xd800 + math.floor(code / 0x400), 0xdc00 + code % 0x400)
    end
    at = at + (length or 1)
  end
  return table.concat(out)
end

-- `text` as a JSON string in ASCII; bytes that are not UTF-8 become U+FFFD.
function M.quote(text)
  if string.find(text, '[%z\1-\31\127"\\]') then
    text = string.gsub(text, '[%z\1-\31\127"\\]', ESCAPES)
  end
  if string.find(text, "[\128-\255]") then
    text = string.gsub(text, "[\128-\255]+", escape_run)
  end
  return '"' .. text .. '"'
end
local quote = M.quote

-- At most `limit` bytes of `text`, not ending in half a UTF-8 sequence.
local function head(text, limit)
  if #text <= limit then
    return text
  end
  local cut = limit
  for back = 0, 3 do
    local byte = string.byte(text, limit + 1 - back)
    if byte < 0x80 or byte > 0xbf then -- a character begins here: all before it is whole
      cut = limit - back
      break
    end
  end
  return string.sub(text, 1, cut)
end
M.head = head

local NULL, ARRAY = {}, {}
local UNESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

local function utf8(code)
  local char, floor = string.char, math.floor
  if code < 0x80 then
    return char(code)
  elseif code < 0x800 then
    return char(0xc0 + floor(code / 0x40), 0x80 + code % 0x40)
  elseif code < 0x10000 then
    return char(0xe0 + floor(code / 0x1000), 0x80 + floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
  end
  return char(0xf0 + floor(code / 0x40000), 0x80 + floor(code / 0x1000) % 0x40, 0x80 + floor(code / 0x40) % 0x40,
    0x80 + code % 0x40)
end

local function decode_string(text, at)
  local out = {}
  while true do
    local stop = string.find(text, '[%z\1-\31"\\]', at)
    local char = stop and string.sub(text, stop, stop)
    if char ~= '"' and char ~= "\\" then
      error("a string without an end")
    end
    out[#out + 1] = string.sub(text, at, stop - 1)
    if char == '"' then
      return table.concat(out), stop + 1
    end
    local kind = string.sub(text, stop + 1, stop + 1)
    at = stop + 2
    if kind == "u" then
      local code = tonumber(string.match(text, "^%x%x%x%x", at) or error("a bad escape"), 16)
      at = at + 4
      if code >= 0xd800 and code <= 0xdbff then
        local low = tonumber(string.match(text, "^\\u([dD][c-fC-F]%x%x)", at) or error("half a character"), 16)
        code = 0x10000 + (code - 0xd800) * 0x400 + (low - 0xdc00)
        at = at + 6
      elseif code >= 0xdc00 and code <= 0xdfff then
        error("half a character")
      end
      out[#out + 1] = utf8(code)
    else
      out[#out + 1] = UNESCAPES[kind] or error("a bad escape")
    end
  end
end

local decode_value

local function skip(text, at)
  return string.find(text, "[^ \t\r\n]", at) or #text + 1
end

-- The items of a list or an object, from behind its bracket to behind the closing one.
local function decode_items(text, at, depth, close, add)
  at = skip(text, at)
  if string.sub(text, at, at) == close then
    return at + 1
  end
  while true do
    at = skip(text, add(skip(text, at), depth))
    local char = string.sub(text, at, at)
    at = at + 1
    if char == close then
      return at
    elseif char ~= "," then
      error("no comma")
    end
  end
end

local function decode_object(text, at, depth)
  local found = {}
  at = decode_items(text, at, depth, "}", function(here)
    if string.sub(text, here, here) ~= '"' then
      error("no key")
    end
    local key, behind = decode_string(text, here + 1)
    behind = skip(text, behind)
    if string.sub(text, behind, behind) ~= ":" then
      error("no colon")
    end
    found[key], behind = decode_value(text, skip(text, behind + 1), depth + 1)
    return behind
  end)
  return found, at
end

local function decode_list(text, at, depth)
  local found = setmetatable({}, ARRAY)
  at = decode_items(text, at, depth, "]", function(here)
    local behind
    found[#found + 1], behind = decode_value(text, here, depth + 1)
    return behind
  end)
  return found, at
end

local WORDS = { ["true"] = true, ["false"] = false, ["null"] = NULL }

function decode_value(text, at, depth)
  if depth > DEPTH_LIMIT then
    error("too deep")
  end
  local char = string.sub(text, at, at)
  if char == '"' then
    return decode_string(text, at + 1)
  elseif char == "{" then
    return decode_object(text, at + 1, depth)
  elseif char == "[" then
    return decode_list(text, at + 1, depth)
  end
  local word = string.match(text, "^%a+", at)
  if word and WORDS[word] ~= nil then
    return WORDS[word], at + #word
  end
  local number = string.match(text, "^-?%d+%.?%d*[eE]?[+-]?%d*", at)
  return tonumber(number or error("no value")) or error("a bad number"), at + #number
end

-- The value of a JSON text, false and the reason where it is none. Bounded in depth; its length bounds the rest.
function M.decode(text)
  local fine, value, at = pcall(decode_value, text, skip(text, 1), 0)
  if not fine then
    return nil, tostring(value)
  elseif skip(text, at) <= #text then
    return nil, "more behind the end"
  end
  return value
end

-- ------------------------------------------------------------------------------------------------- the connection

local socket = require("posix.sys.socket")
local poll = require("posix.poll")
local errno = require("posix.errno")
local fcntl = require("posix.fcntl")
local unistd = require("posix.unistd")
local stat = require("posix.sys.stat")
local time = require("posix.time")

local connection = { fd = nil, buffer = "" }
local clock_gettime, MONOTONIC = time.clock_gettime, time.CLOCK_MONOTONIC

local function now()
  local at = clock_gettime(MONOTONIC)
  return at.tv_sec + at.tv_nsec * 1e-9
end

local function close()
  if connection.fd then
    unistd.close(connection.fd)
  end
  connection.fd, connection.buffer = nil, ""
end

-- slurmctld throws the whole Lua state away when job_submit.lua is touched: the descriptor must go with it.
local keeper
if newproxy then -- Lua 5.1 finalises userdata only
  keeper = newproxy(true)
  getmetatable(keeper).__gc = close
else
  keeper = setmetatable({}, { __gc = close })
end
M._keeper = keeper

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
  return ready ~= nil and ready > 0
end

local function passing(number)
  return number == errno.EAGAIN or number == errno.EWOULDBLOCK or number == errno.EINTR
end

local LATE, CLOSED = "no answer in time", "the service closed the connection"

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
      local answer, why = M.decode(line)
      if type(answer) ~= "table" or answer.v ~= PROTOCOL then
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

-- One question, one answer, within the deadline. A kept connection that turns out to be closed (the service was
-- restarted) is replaced once, within the same deadline.
local function ask(id, line)
  local deadline = now() + config.deadline
  for _ = 1, 2 do
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
    if answer then
      return answer
    end
    close()
    if not (kept and why == CLOSED) then
      return nil, why
    end
  end
  return nil, CLOSED
end

-- ---------------------------------------------------------------------------------------------------- the request

local last_id = 0
local counters = { opened = 0, late = 0, dropped = 0 } -- since this file was loaded; told with each question

local NUMBERS, TEXTS = {}, {}
for name, kind in pairs(M.FIELDS) do
  if kind == "text" then
    TEXTS[#TEXTS + 1] = { name, '"' .. name .. '":' }
  else
    NUMBERS[#NUMBERS + 1] = { name, '"' .. name .. '":', NO_VAL[kind] }
  end
end

local function integer(value, unset)
  if value == true then
    return "1"
  elseif type(value) ~= "number" or value == unset or value < 0 or value >= INTEGER_LIMIT or value % 1 ~= 0 then
    return nil
  end
  return string.format("%.0f", value)
end

local function job_part(job, text_limit)
  local parts, cut = {}, {}
  for _, field in ipairs(NUMBERS) do
    local value = integer(job[field[1]], field[3])
    if value then
      parts[#parts + 1] = field[2] .. value
    end
  end
  for _, field in ipairs(TEXTS) do
    local value = job[field[1]]
    if type(value) == "string" then
      if #value > text_limit then
        value = head(value, text_limit)
        cut[#cut + 1] = quote(field[1])
      end
      parts[#parts + 1] = field[2] .. quote(value)
    end
  end
  return "{" .. table.concat(parts, ",") .. "}", cut
end

local function env_part(environment, limit, cut)
  local parts = {}
  for _, name in ipairs(M.ENV_NAMES) do
    local value = environment[name]
    if type(value) == "string" then
      if #value > limit then
        value = head(value, limit)
        cut[#cut + 1] = quote("env." .. name)
      end
      parts[#parts + 1] = quote(name) .. ":" .. quote(value)
    end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

local function shim_part()
  local parts = {}
  for name, count in pairs(counters) do
    if count > 0 then
      parts[#parts + 1] = string.format('"%s":%d', name, count)
    end
  end
  return #parts > 0 and ',"shim":{' .. table.concat(parts, ",") .. "}" or ""
end

local function request_line(id, job, submit_uid, script, shrink)
  local fields, cut = job_part(job, STRING_LIMIT / shrink)
  local parts = {
    '{"v":1,"id":', string.format("%d", id), ',"uid":', integer(job.user_id) or "0",
    ',"submit_uid":', integer(submit_uid) or "0", ',"slurm":"","job":', fields,
  }
  if script then
    parts[#parts + 1] = ',"env":' .. env_part(job.environment, ENV_LIMIT / shrink, cut) .. ',"batch":true'
    parts[#parts + 1] = ',"script_head":' .. quote(head(script, SCRIPT_LIMIT / shrink))
    parts[#parts + 1] = string.format(',"script_bytes":%d', #script)
  else
    parts[#parts + 1] = ',"batch":false'
  end
  if #cut > 0 then
    parts[#parts + 1] = ',"cut":[' .. table.concat(cut, ",") .. "]"
  end
  parts[#parts + 1] = shim_part()
  parts[#parts + 1] = "}\n"
  return table.concat(parts)
end

-- The question about a job, at most REQUEST_LIMIT bytes: text that escapes to six times its length is cut shorter.
function M.request(id, job, submit_uid, script)
  local line = request_line(id, job, submit_uid, script, 1)
  if #line > REQUEST_LIMIT then
    line = request_line(id, job, submit_uid, script, 8)
  end
  return line
end

-- ---------------------------------------------------------------------------------------------------- the answer

-- A line that a terminal may be given: printable UTF-8 without control characters.
local function printable(text)
  if type(text) ~= "string" or #text > 400 or string.find(text, "[%z\1-\31\127]") then
    return false
  end
  local at = string.find(text, "[\128-\255]")
  while at do
    local length, code = sequence(text, at)
    if not length or code < 0xa0 then
      return false
    end
    at = string.find(text, "[\128-\255]", at + length)
  end
  return true
end

local function checked_edit(name, value)
  local rule = M.EDITS[name]
  if not rule then
    return nil
  elseif rule[1] == "int" then
    if type(value) ~= "number" or value % 1 ~= 0 or value < rule[2] or value > rule[3] then
      return nil
    end
    return value
  end
  if type(value) ~= "string" or #value < rule[2] or #value > rule[3] then
    return nil
  end
  return string.find(value, "^[" .. rule[4] .. "]*$") and value or nil
end

local ENV_ALLOWED = {}
for _, name in ipairs(M.ENV_NAMES) do
  ENV_ALLOWED[name] = true
end

local function checked_lines(value, count)
  if type(value) ~= "table" or getmetatable(value) ~= ARRAY or #value > count then
    return nil
  end
  for _, line in ipairs(value) do
    if not printable(line) then
      return nil
    end
  end
  return value
end

-- What is to be done, from an answer; nil and the reason where anything in it is not allowed.
function M.plan(answer, batch)
  if not MODES[answer.mode] then
    return nil, "an unknown mode"
  elseif answer.mode == "observe" then
    return { edits = {}, env = {}, say = {} }
  end
  local plan = { edits = {}, env = {}, say = checked_lines(answer.say, 8) }
  if not plan.say then
    return nil, "a message that cannot be shown"
  elseif answer.mode == "advise" then
    return plan
  end
  if answer.reject ~= NULL and answer.reject ~= nil then
    if type(answer.reject) ~= "string" then
      return nil, "a rejection that is no text"
    end
    local lines = setmetatable({}, ARRAY)
    for line in string.gmatch(answer.reject, "[^\n]+") do
      lines[#lines + 1] = line
    end
    plan.reject = checked_lines(lines, 3)
    if not plan.reject or #lines == 0 then
      return nil, "a rejection that cannot be shown"
    end
    return plan
  end
  for name, value in pairs(type(answer.edits) == "table" and answer.edits or { [0] = 0 }) do
    plan.edits[name] = checked_edit(name, value)
    if plan.edits[name] == nil then
      return nil, "a change that is not allowed: " .. tostring(name)
    end
  end
  if plan.edits.min_mem_per_node and plan.edits.min_mem_per_cpu then
    return nil, "memory both per node and per CPU"
  end
  for name, value in pairs(type(answer.env) == "table" and answer.env or { [0] = 0 }) do
    if not ENV_ALLOWED[name] or type(value) ~= "string" or #value > ENV_LIMIT or not string.find(value, ENV_VALUE) then
      return nil, "a variable that is not allowed: " .. tostring(name)
    elseif not batch then
      return nil, "variables for a job that brings none"
    end
    plan.env[name] = value
  end
  return plan
end

-- Make the changes. Where one fails, those before it are taken back.
function M.apply(job, plan)
  local done, where = {}, nil
  local function set(target, name, value)
    local before = target[name]
    where = name
    target[name] = value
    done[#done + 1] = { target, name, before }
  end
  local fine, problem = pcall(function()
    for name, value in pairs(plan.edits) do
      if not LAST[name] then
        set(job, name, value)
      end
    end
    local environment = next(plan.env) and job.environment
    for name, value in pairs(plan.env) do
      set(environment, name, value)
    end
    for name in pairs(LAST) do
      if plan.edits[name] then
        set(job, name, plan.edits[name])
      end
    end
  end)
  if fine then
    return true
  end
  for index = #done, 1, -1 do
    local target, name, before = done[index][1], done[index][2], done[index][3]
    pcall(function()
      target[name] = before == nil and "" or before -- an empty text is how Lua unsets one
    end)
  end
  return nil, string.format("%s could not be changed: %s", tostring(where), tostring(problem))
end

-- --------------------------------------------------------------------------------------------------- the breaker

local breaker = { failures = 0, until_ = nil }

local function log(level, text) -- never as the format: it may hold a user's words
  slurm["log_" .. level]("%s", "gsub: " .. string.gsub(tostring(text), "[%c\127-\255]", "?"))
end

local function closed_now()
  if not breaker.until_ then
    return true
  elseif now() < breaker.until_ then
    return false
  end
  return true -- the one probe: a failure sets the time anew
end

local function failed(why)
  if why == LATE then
    counters.late = counters.late + 1
  end
  breaker.failures = breaker.failures + 1
  if breaker.failures < config.failures then
    log("debug", why)
    return
  end
  if not breaker.until_ then
    counters.opened = counters.opened + 1
    log("error", string.format("%s; jobs pass unchanged, the service is asked again every %g s", why, config.pause))
  end
  breaker.until_ = now() + config.pause
end

local function succeeded()
  if breaker.until_ then
    log("info", "the service answers again")
  end
  breaker.failures, breaker.until_ = 0, nil
end

-- ------------------------------------------------------------------------------------------------ the submission

-- Whether a TRES list names GPUs: gres:gpu:4 (to 23.02), gres/gpu:a100:4 (from 23.11), gpu:2.
local function names_gpu(list)
  if type(list) ~= "string" or not string.find(list, "gpu", 1, true) then
    return false
  end
  for item in string.gmatch(list, "[^,]+") do
    item = string.gsub(item, "^%s*gres[:/]", "")
    if string.match(item, "^%s*([^:=/%s]*)") == "gpu" then
      return true
    end
  end
  return false
end

function M.wants_gpu(job)
  return names_gpu(job.tres_per_node) or names_gpu(job.tres_per_job) or names_gpu(job.tres_per_task)
    or names_gpu(job.tres_per_socket) or integer(job.ntasks_per_tres, NO_VAL[16]) ~= nil
end

local function opted_out(comment)
  if type(comment) ~= "string" or not string.find(comment, "gsub:off", 1, true) then
    return false
  end
  for word in string.gmatch(comment, "[^%s,;]+") do
    if word == "gsub:off" then
      return true
    end
  end
  return false
end

local function consider(job, submit_uid)
  if not M.wants_gpu(job) or opted_out(job.comment) or not closed_now() then
    return slurm.SUCCESS
  end
  local script = job.script
  if type(script) ~= "string" then
    script = nil -- salloc and srun: they do not send their environment either
  elseif string.match(string.lower(job.environment["GSUB"] or ""), "^%s*(.-)%s*$") == "off" then
    return slurm.SUCCESS
  end
  last_id = last_id + 1
  local answer, why = ask(last_id, M.request(last_id, job, submit_uid, script))
  if not answer then
    failed(why)
    return slurm.SUCCESS
  end
  succeeded()
  if answer.error ~= nil then
    log("debug", "the service could not read a question: " .. tostring(answer.error))
    return slurm.SUCCESS
  end
  local plan, fault = M.plan(answer, script ~= nil)
  if plan and not plan.reject then
    local fine, problem = M.apply(job, plan)
    if not fine then
      plan, fault = nil, problem
    end
  end
  if not plan then
    counters.dropped = counters.dropped + 1
    log("error", "an answer was dropped, the job passes unchanged: " .. fault)
    return slurm.SUCCESS
  end
  for _, line in ipairs(plan.reject or plan.say) do
    slurm.log_user("%s", line)
  end
  return plan.reject and slurm.ERROR or slurm.SUCCESS
end

-- Decide about one submission. What slurm_job_submit of job_submit.lua returns.
function M.submit(job_desc, _, submit_uid)
  local fine, result = pcall(consider, job_desc, submit_uid)
  if fine then
    return result
  end
  pcall(close) -- the connection may hold half an exchange
  pcall(log, "error", "a fault in gsub.lua, the job passes unchanged: " .. tostring(result))
  return slurm.SUCCESS
end

-- Change the defaults: { socket = path, owner = uid, deadline = seconds, failures = n, pause = seconds }.
function M.setup(options)
  for name, value in pairs(options) do
    config[name] = value
  end
  return M
end

return M
