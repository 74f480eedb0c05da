-- A slurmctld for gsub.lua: a `slurm` table, job_desc proxies that behave as Slurm's do, and a loop that takes orders.
-- An order on stdin: its length in bytes and a newline, then a Lua table; a reply: one line of JSON whose strings hold
-- one character a byte. Started as: luaX.Y harness.lua GSUB.LUA

local GSUB = arg[1]
local compile = loadstring or load

-- ---------------------------------------------------------------------------------------------------- replies

local function quote(text)
  return '"' .. string.gsub(text, '[^ !#-%[%]-~]', function(char)
    return string.format("\\u%04x", string.byte(char))
  end) .. '"'
end

local function encode(value)
  local kind = type(value)
  if kind == "string" then
    return quote(value)
  elseif kind == "number" then
    return value % 1 == 0 and string.format("%.0f", value) or string.format("%.17g", value)
  elseif kind == "table" then
    local parts = {}
    if #value > 0 or value.n then
      for index = 1, value.n or #value do
        parts[index] = encode(value[index])
      end
      return "[" .. table.concat(parts, ",") .. "]"
    end
    for name, item in pairs(value) do
      parts[#parts + 1] = quote(tostring(name)) .. ":" .. encode(item)
    end
    return "{" .. table.concat(parts, ",") .. "}"
  elseif kind == "boolean" then
    return tostring(value)
  end
  return "null"
end

-- ---------------------------------------------------------------------------------------------------- slurm

local said, logged, writes = { n = 0 }, { n = 0 }, { n = 0 }

local function add(list, item)
  list.n = list.n + 1
  list[list.n] = item
end

slurm = { SUCCESS = 0, ERROR = -1, FAILURE = -1, NO_VAL = 0xfffffffe, NO_VAL16 = 0xfffe, NO_VAL64 = 2 ^ 64 - 2 }
for _, level in ipairs({ "error", "info", "verbose", "debug", "debug2" }) do
  slurm["log_" .. level] = function(format, ...)
    add(logged, level .. ": " .. string.format(format, ...))
  end
end
function slurm.log_user(format, ...)
  add(said, string.format(format, ...))
end

-- As _get_job_req_field and _set_job_req_field: a name that Slurm does not know reads as nil and is not written, with a
-- line in the log; a number that is not set reads as its NO_VAL; a value of the wrong type raises.
local refused
local function job_proxy(kinds, values, environment)
  local env = setmetatable({}, {
    __index = function(_, name)
      if not environment then
        slurm.log_error("_job_env_field: job_desc->environment only accessible for batch jobs.")
      end
      return environment and environment[name]
    end,
    __newindex = function(_, name, value)
      if not environment then
        error("job_desc->environment is NULL")
      elseif type(value) ~= "string" and type(value) ~= "number" then
        error("bad argument #3 to '__newindex' (string expected, got " .. type(value) .. ")")
      end
      add(writes, "env." .. name)
      environment[name] = tostring(value)
    end,
  })
  return setmetatable({}, {
    __index = function(_, name)
      if name == "environment" then
        return env
      elseif name == "gres" then
        return values.tres_per_node
      end
      local value, kind = values[name], kinds[name]
      if value == nil and type(kind) == "number" then
        return kind
      end
      return value
    end,
    __newindex = function(_, name, value)
      local kind = kinds[name]
      if kind == nil then
        slurm.log_error("_set_job_field: unrecognized field: %s", tostring(name))
        return
      elseif name == refused then
        error("no")
      end
      local good = kind == "text" and (type(value) == "string" or type(value) == "number")
        or kind ~= "text" and tonumber(value) ~= nil and type(value) ~= "table"
      if not good then
        error("bad argument #3 to '__newindex' (" .. type(value) .. ")")
      end
      add(writes, name)
      if name == "gres" then
        name = "tres_per_node"
      elseif name == "min_mem_per_cpu" then
        values.min_mem_per_node = nil
      elseif name == "min_mem_per_node" then
        values.min_mem_per_cpu = nil
      end
      if kind == "text" then
        values[name] = value ~= "" and tostring(value) or nil
      else
        values[name] = tonumber(value) ~= kind and tonumber(value) or nil
      end
    end,
  })
end

-- ---------------------------------------------------------------------------------------------------- orders

local posix_time = require("posix.time")

local function seconds()
  local at = posix_time.clock_gettime(posix_time.CLOCK_MONOTONIC)
  return at.tv_sec + at.tv_nsec * 1e-9
end

local standard = {}
for name in pairs(_G) do
  standard[name] = true
end

local gsub = assert(loadfile(GSUB))()
local orders = {}

function orders.setup(order)
  gsub.setup(order.options)
  return { log = logged }
end

-- Load a job_submit.lua as slurmctld does; its functions are then called instead of the shim's own.
function orders.script(order)
  slurm_job_submit, slurm_job_modify = nil, nil
  local rc = assert(compile(order.text, "@job_submit.lua"))()
  return { rc = rc, modify = slurm_job_modify and true or false, log = logged }
end

function orders.submit(order)
  local job = job_proxy(order.kinds, order.job, order.env)
  local submit = order.scripted and slurm_job_submit or gsub.submit
  local started = seconds()
  local fine, rc = pcall(submit, job, {}, order.uid)
  return {
    raised = not fine and tostring(rc) or nil, rc = fine and rc or nil, seconds = seconds() - started,
    job = order.job, env = order.env, said = said, log = logged, writes = writes,
  }
end

-- A change of a job: `job` are the fields that it sets, `record` is slurmctld's own of the job.
function orders.modify(order)
  local modify = order.scripted and slurm_job_modify or gsub.modify
  local record = order.record
  if order.broken then
    record = setmetatable({}, { __index = function() error("no record") end })
  end
  local fine, rc = pcall(modify, job_proxy(order.kinds, order.job), record, {}, order.uid)
  return { raised = not fine and tostring(rc) or nil, rc = fine and rc or nil, said = said, log = logged }
end

-- Run cli_filter.lua as sbatch does: options as texts, nil where a release has none.
function orders.filter(order)
  os.getenv = function(name)
    return order.env[name]
  end
  local loaded = assert(compile(order.text, "@cli_filter.lua"))()
  local results = { n = 0 }
  for offset, options in ipairs(order.components) do
    add(results, slurm_cli_setup_defaults(options, true))
    add(results, slurm_cli_pre_submit(setmetatable({}, { __index = options, __newindex = function()
      error("an option was changed")
    end }), offset - 1))
  end
  add(results, slurm_cli_post_submit(0, 1, 0))
  return { loaded = loaded, results = results, log = logged }
end

function orders.request(order)
  local job = job_proxy(order.kinds, order.job, order.env)
  return { line = gsub.request.line(order.id, job, order.uid, order.job.script, order.counters or {}) }
end

-- Answers, one a line, each for a fresh copy of one job: what each changed, without a socket.
function orders.feed(order)
  local replies = { n = 0 }
  for line in string.gmatch(order.lines, "[^\n]+") do
    local values, environment = {}, order.env and {}
    for name, value in pairs(order.job) do
      values[name] = value
    end
    for name, value in pairs(order.env or {}) do
      environment[name] = value
    end
    writes = { n = 0 }
    local fine, problem = pcall(function()
      local answer, why = gsub.json.decode(line)
      local plan
      if gsub.json.is_object(answer) then
        plan, why = gsub.answers.plan(answer, order.env ~= nil)
      end
      if plan and not plan.reject then
        plan, why = gsub.answers.apply(job_proxy(order.kinds, values, environment), plan)
      end
      return not plan and (why or "no object") or nil
    end)
    add(replies, { raised = not fine and tostring(problem) or nil, dropped = fine and problem or nil, writes = writes,
      job = values, env = environment })
  end
  return { replies = replies }
end

-- Carry out a plan on a job whose field `name` Slurm refuses to write.
function orders.refuse(order)
  refused = order.name
  local job = job_proxy(order.kinds, order.job, order.env)
  local fine, why = gsub.answers.apply(job, { env = order.set_env, edits = order.edits })
  refused = nil
  return { fine = fine, why = why, job = order.job, env = order.env, writes = writes }
end

function orders.decode(order)
  local value, why = gsub.json.decode(order.text)
  local function plain(item)
    if item == gsub.json.NULL then
      return nil
    elseif gsub.json.is_list(item) then
      item.n = #item
      for index = 1, item.n do
        item[index] = plain(item[index])
      end
    elseif type(item) == "table" then
      for key, inner in pairs(item) do
        item[key] = plain(inner)
      end
    end
    return item
  end
  return { value = plain(value), why = why }
end

function orders.quote(order)
  return { text = gsub.json.quote(order.text) }
end

function orders.head(order)
  return { text = gsub.json.head(order.text, order.limit) }
end

function orders.wants(order)
  return { gpu = gsub.wants_gpu(job_proxy(order.kinds, order.job, order.env)) }
end

function orders.tables()
  local all = gsub.tables
  return { fields = all.FIELDS, env_names = all.ENV_NAMES, env_value = all.ENV_VALUE, edits = all.EDITS }
end

-- The global names that came with the shim.
function orders.globals()
  local names = { n = 0 }
  for name in pairs(_G) do
    if not standard[name] then
      add(names, name)
    end
  end
  return { names = names }
end

function orders.memory()
  collectgarbage()
  collectgarbage()
  return { kilobytes = math.floor(collectgarbage("count")) }
end

-- Let the machine's list of users be this file.
local open = io.open
function orders.users(order)
  io.open = function(path, ...)
    return open(path == "/etc/passwd" and order.path or path, ...)
  end
  return {}
end

-- Put another thing in the place of a descriptor, as a site's script may that closes one which is not its own.
function orders.replace(order)
  local unistd, socket, fcntl = require("posix.unistd"), require("posix.sys.socket"), require("posix.fcntl")
  local other = assert(order.socket and socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM, 0)
    or not order.socket and fcntl.open("/dev/null", fcntl.O_RDWR))
  fcntl.fcntl(other, fcntl.F_SETFL, fcntl.O_NONBLOCK)
  assert(unistd.dup2(other, order.fd))
  unistd.close(other)
  return {}
end

-- Forget the shim, as slurmctld does when job_submit.lua was touched.
function orders.forget()
  gsub, slurm_job_submit = nil, nil
  collectgarbage()
  collectgarbage()
  return {}
end

io.stdout:setvbuf("full")
while true do
  local length = io.read("*l")
  if not length then
    break
  end
  local order = assert(compile("return " .. io.read(tonumber(length))))()
  said, logged, writes = { n = 0 }, { n = 0 }, { n = 0 }
  io.write(encode(orders[order.order](order)), "\n")
  io.flush()
end
