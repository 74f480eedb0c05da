-- Submits jobs with odd fields through the real gsub.lua, and tells what became of each, a line each:
--   number <tab> result <tab> changes <tab> lines said to the user
-- Usage: lua drive.lua GSUB.LUA SOCKET SEED FIRST COUNT
-- A change is NAME=i:INTEGER or NAME=t:HEX, with "env." before the name of a variable and "had." before what the job
-- brought; refuses=NAME where job_desc does not take that field, batch=1 where the job has a script.
local path, socket_path, seed, first, count = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4]), tonumber(arg[5])

-- Park and Miller's generator: the same in every Lua, doubles or not.
local state
local function random(limit) -- 0 .. limit - 1
  state = state * 16807 % 2147483647
  return math.floor(state / 2147483647 * limit)
end

local TEXTS = { "", " ", "gpu", "a100", "n[1-4]", "gsub:explain", "%s%n", "\n", '"', "\\", "\255\254", "\195", "\237\160\128",
  "\1\2\27[31m", "é😀", "null", "gres/gpu:a100:4", "gres:gpu=2,gres/shard:1", "gpu", string.rep("x", 5000), string.rep("\195\169", 3000) }
local NUMBERS = { 0, 1, 2, 4, 16, 255, 0xfffd, 0xfffe, 0xffff, 65000, 0xfffffffd, 0xfffffffe, 0xffffffff, 2 ^ 53, 1.5, -1, 2 ^ 63, 0 / 0 }

local function text()
  if random(3) > 0 then
    return TEXTS[random(#TEXTS) + 1]
  end
  local bytes = {}
  for index = 1, random(80) do
    bytes[index] = string.char(1 + random(255)) -- a C string holds no zero
  end
  return table.concat(bytes)
end

local function hex(value)
  return (string.gsub(value, ".", function(char)
    return string.format("%02x", string.byte(char))
  end))
end

local function shown(value)
  if type(value) == "number" then
    return string.format(value % 1 == 0 and "i:%.0f" or "f:%.17g", value)
  end
  return type(value) == "string" and "t:" .. hex(value) or type(value)
end

local said = {}
slurm = { SUCCESS = 0, ERROR = -1, log_user = function(format, line)
  said[#said + 1] = "said:" .. (format == "%s" and hex(line) or "a format")
end }
for _, level in ipairs({ "log_error", "log_info", "log_debug", "log_verbose", "log_debug2" }) do
  slurm[level] = function(format, ...)
    assert(format == "%s" and select("#", ...) == 1, "user text as a format")
    if os.getenv("FUZZ_LOG") then io.stderr:write(level, " ", (...), "\n") end
  end
end

-- Time is not what is tried here: it stands still, so that a slow machine gets its answers and the breaker stays shut.
local posix_time, posix_poll = require("posix.time"), require("posix.poll")
posix_time.clock_gettime = function()
  return { tv_sec = 1, tv_nsec = 0 }
end
local poll = posix_poll.poll
posix_poll.poll = function(descriptors)
  return poll(descriptors, -1)
end
local gsub = dofile(path)
gsub.setup({ socket = socket_path, failures = 1e9 })

-- As job_desc: a number that is unset is its width's highest but one (memory is nil then), a name that it does not have
-- is nil, a write of another kind raises, and so does a write of the one that it refuses.
local WRITTEN = { gres = "tres_per_node" }
local UNSET = { [16] = 0xfffe, [32] = 0xfffffffe, [64] = 2 ^ 53, flag = 0 }
local function proxy(values, kinds, refuses)
  return setmetatable({}, {
    __index = function(_, name)
      name = WRITTEN[name] or name
      if values[name] == nil and name ~= "min_mem_per_node" and name ~= "min_mem_per_cpu" then
        return UNSET[kinds(name)]
      end
      return values[name]
    end,
    __newindex = function(_, name, value)
      name = WRITTEN[name] or name
      local kind = kinds(name)
      if not kind then
        error("no field " .. tostring(name))
      elseif type(value) ~= (kind == "text" and "string" or "number") then
        error(tostring(name) .. " cannot be a " .. type(value))
      elseif refuses == name then
        error(name .. " is refused")
      end
      values[name] = value
    end,
  })
end

local function copy(from)
  local found = {}
  for name, value in pairs(from) do
    found[name] = value
  end
  return found
end

local function changes(before, after, prefix, into)
  for name, value in pairs(after) do
    local was = before[name]
    local unset = value == "" or value == UNSET[gsub.tables.FIELDS[name]]
    if value ~= was and value == value and not (was == nil and unset) then
      into[#into + 1] = prefix .. name .. "=" .. shown(value)
    end
  end
end

local NAMES = {}
for name in pairs(gsub.tables.FIELDS) do
  NAMES[#NAMES + 1] = name
end
table.sort(NAMES)
local EDITED = {}
for name in pairs(gsub.tables.EDITS) do
  EDITED[#EDITED + 1] = name
end
table.sort(EDITED)

for number = first, first + count - 1 do
  state = 1 + (seed * 7919 + number * 104729) % 2147483646
  for _ = 1, 5 do random(2) end
  local values, env = { user_id = 1000 + random(3) }, {}
  for _ = 1, random(20) do
    local name = NAMES[random(#NAMES) + 1]
    if gsub.tables.FIELDS[name] == "text" then
      values[name] = text()
    else
      values[name] = NUMBERS[random(#NUMBERS) + 1]
    end
  end
  if type(values.comment) == "string" then
    values.comment = string.gsub(values.comment, "gsub:off", "")
  end
  values.account = "case-" .. number -- how the server knows which answer this one gets
  values.tres_per_node = random(2) == 0 and "gres:gpu:8" or "gres/gpu:a100:2"
  if random(4) > 0 then
    values.script = "#!/bin/sh\n" .. string.rep(text(), 1 + random(3) * random(20))
    for _ = 1, random(6) do
      local name = gsub.tables.ENV_NAMES[random(#gsub.tables.ENV_NAMES) + 1]
      env[name] = name ~= "GSUB" and text() or "explain"
    end
  end
  local refuses = random(8) == 0 and EDITED[random(#EDITED) + 1] or nil
  refuses = WRITTEN[refuses] or refuses
  local before, before_env = copy(values), copy(env)
  if values.script then
    values.environment = proxy(env, function() return "text" end)
    before.environment = values.environment
  end
  local job = proxy(values, function(name)
    local edit = gsub.tables.EDITS[name == "tres_per_node" and "gres" or name]
    return gsub.tables.FIELDS[name] or edit and (edit[1] == "int" and 32 or edit[1])
  end, refuses)
  said = {}
  local fine, result = pcall(gsub.submit, job, {}, 0)
  local changed = {}
  changes(before, values, "", changed)
  changes(before_env, env, "env.", changed)
  for name in pairs(before) do
    if values[name] == nil then
      changed[#changed + 1] = name .. "=nil"
    end
  end
  changes({}, before, "had.", changed)
  changes({}, before_env, "had.env.", changed)
  if refuses then
    changed[#changed + 1] = "refuses=" .. refuses
  end
  if values.script then
    changed[#changed + 1] = "batch=1"
  end
  result = not fine and "RAISED " .. string.gsub(tostring(result), "[%c]", " ")
    or result == slurm.SUCCESS and "SUCCESS" or result == slurm.ERROR and "ERROR" or "RETURNED " .. tostring(result)
  io.write(number, "\t", result, "\t", table.concat(changed, " "), "\t", table.concat(said, " "), "\n")
end
