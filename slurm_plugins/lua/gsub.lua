-- gsub.lua: asks gsub's decision service about a submission, and applies its answer.
--
-- Runs inside slurmctld, under its locks, for every job: so it can cost one deadline at most, it never raises, and it
-- returns slurm.SUCCESS unless the service rejects the job in enforce mode. Needs Lua 5.1 to 5.4 and lua-posix.
-- A site's own job_submit.lua loads it with three lines: see job_submit.lua beside this file, and docs/shim.md.

local M = {}

local config = {
  socket = "/run/gsub/decision.sock",
  owner = nil, -- a uid that may own the socket, beside root, slurmctld's own user and the user gsub
  deadline = 0.050, -- seconds for all of: connect, send, receive
  failures = 3, -- in a row, until no more questions are asked for
  pause = 5, -- seconds
}

-- The other files of the shim lie beside this one.
local folder = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or ""
local function part(name, ...)
  return assert(assert(loadfile(folder .. name .. ".lua"))(...), name .. ".lua is cut short")
end
local tables = part("tables")
local json = part("json")
local wire = part("wire", json, config)
local request = part("request", json, tables)
local answers = part("answer", json, tables)
M.tables, M.json, M.request, M.answers = tables, json, request, answers

local last_id = 0
-- Since slurmctld loaded this; told with each question, so that the service's metrics show it.
local counters = { opened = 0, late = 0, dropped = 0 }

-- --------------------------------------------------------------------------------------------------- the breaker

local breaker = { failures = 0, paused_until = nil }

-- The text is never the format: it may hold a user's words.
local function log(level, text)
  text = string.gsub(string.sub(tostring(text), 1, 400), "[%c\127-\255]", "?")
  slurm["log_" .. level]("%s", "gsub: " .. text)
end

local function may_ask()
  -- Once the pause is over, one question is the probe: a failure sets the time anew.
  return not breaker.paused_until or wire.now() >= breaker.paused_until
end

local function failed(why)
  if why == wire.LATE then
    counters.late = counters.late + 1
  end
  breaker.failures = breaker.failures + 1
  if breaker.failures < config.failures then
    log("debug", why)
    return
  end
  if not breaker.paused_until then
    counters.opened = counters.opened + 1
    log("error", string.format("%s; jobs pass unchanged, the service is asked again every %g s", why, config.pause))
  end
  breaker.paused_until = wire.now() + config.pause
end

local function succeeded()
  if breaker.paused_until then
    log("info", "the service answers again")
  end
  breaker.failures, breaker.paused_until = 0, nil
end

-- ------------------------------------------------------------------------------------------------ the submission

-- Whether a TRES list names GPUs: gres:gpu:4 (to 23.02), gres/gpu:a100:4 (from 23.11), gpu:2.
local function names_gpu(list)
  if type(list) ~= "string" or not string.find(list, "gpu", 1, true) then
    return false
  end
  for item in string.gmatch(list, "[^,]+") do
    local name = string.gsub(item, "^%s*gres[:/]", "")
    if string.match(name, "^%s*([^:=/%s]*)") == "gpu" then
      return true
    end
  end
  return false
end

-- Whether gsub has anything to say about the job. --ntasks-per-gpu asks for GPUs without naming them.
function M.wants_gpu(job)
  return names_gpu(job.tres_per_node) or names_gpu(job.tres_per_job) or names_gpu(job.tres_per_task)
    or names_gpu(job.tres_per_socket) or request.integer(job.ntasks_per_tres, 0xfffe) ~= nil
end

-- The user said no: a word of the comment, or GSUB=off in the job's environment. As Request.opted_out of
-- slurm_plugins/decide/request.py reads them.
local function declined_in(comment)
  for word in string.gmatch(type(comment) == "string" and comment or "", "[^%s,;]+") do
    if string.lower(word) == "gsub:off" then
      return true
    end
  end
  return false
end

local function declined_by(variable)
  return type(variable) == "string" and string.match(string.lower(variable), "^%s*(.-)%s*$") == "off"
end

-- Of a heterogeneous job only the first component brings its environment: its word goes for those behind it, which
-- follow within milliseconds. By uid, since when. The components of two such jobs of one user may come mixed, and nothing
-- tells them apart: for a moment all of that user's pass, for a missed improvement is better than an unwanted one.
local lead_declined, NO_OFFSET, MOMENT = {}, 0xfffffffe, 1

local function declined_by_lead(user)
  local since = lead_declined[user]
  return since and wire.now() - since < MOMENT
end

local function consider(job, submit_uid)
  local offset = job.het_job_offset
  if offset == 0 and type(job.script) == "string" and declined_by(job.environment["GSUB"]) then
    lead_declined[job.user_id] = wire.now()
  end
  if not M.wants_gpu(job) or declined_in(job.comment) or not may_ask() then
    return slurm.SUCCESS
  end
  local script = job.script
  if type(script) ~= "string" then
    script = nil -- salloc and srun: they do not send their environment either
    if offset and offset > 0 and offset < NO_OFFSET and declined_by_lead(job.user_id) then
      return slurm.SUCCESS
    end
  elseif declined_by(job.environment["GSUB"]) then
    return slurm.SUCCESS
  end
  last_id = last_id + 1
  local answer, why = wire.ask(last_id, request.line(last_id, job, submit_uid, script, counters))
  if not answer then
    failed(why)
    return slurm.SUCCESS
  end
  succeeded()
  if answer.error ~= nil then
    log("debug", "the service could not read a question: " .. tostring(answer.error))
    return slurm.SUCCESS
  end
  local plan, fault = answers.plan(answer, script ~= nil)
  if plan and not plan.reject then
    local fine, problem = answers.apply(job, plan)
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
  return plan.reject and (plan.errno or slurm.ERROR) or slurm.SUCCESS
end

-- Decide about one submission. What slurm_job_submit of job_submit.lua returns.
function M.submit(job_desc, _, submit_uid)
  local fine, result = pcall(consider, job_desc, submit_uid)
  if fine then
    return result
  end
  pcall(wire.close) -- the connection may hold half an exchange
  pcall(log, "error", "a fault in gsub.lua, the job passes unchanged: " .. tostring(result))
  return slurm.SUCCESS
end

-- ------------------------------------------------------------------------------------------------- a later change

-- ESLURM_ACCESS_DENIED: of a change 22.05 shows its user the number's words alone, "Access/permission denied".
local PENDING, ACCESS_DENIED = 0, 2002

local function is_marked(comment)
  for word in string.gmatch(type(comment) == "string" and comment or "", "%S+") do
    if word == tables.MARK then
      return true
    end
  end
  return false
end

-- The first guarded field that a change sets; the comment is one where it would lose the mark.
local function guarded_field(job)
  if type(job.comment) == "string" and not is_marked(job.comment) then
    return "comment"
  end
  for _, name in ipairs(tables.GUARDED) do
    local value = job[name]
    local width = tables.FIELDS[name]
    if type(value) == "string" or type(width) == "number" and request.is_set(value, width) then
      return name
    end
  end
end

local function refused(job, record, modify_uid)
  -- Operators and root know what they do; gsub-act is one of them.
  if modify_uid == 0 or modify_uid ~= record.user_id or not is_marked(record.comment) then
    return nil
  end
  local state = record.job_state
  return (state == nil or state % 256 == PENDING) and guarded_field(job) or nil
end

-- Decide about one change of a job. What slurm_job_modify of job_submit.lua returns: a number of Slurm's errors where the job's user
-- changes how much a job gets whose memory gsub-act has set, since Slurm would hold that to no limit.
function M.modify(job_desc, job_rec, _, modify_uid)
  local fine, result = pcall(refused, job_desc, job_rec, modify_uid)
  if not fine then
    pcall(log, "error", "a fault in gsub.lua, the change passes: " .. tostring(result))
  elseif result then
    slurm.log_user("%s", "gsub: " .. result .. " of this job stays as it is, since gsub has set its memory and Slurm would "
      .. "hold the change to no limit; submit the job anew")
    return ACCESS_DENIED
  end
  return slurm.SUCCESS
end

-- What setup takes, and what it must be.
local OPTIONS = {
  socket = function(value)
    return type(value) == "string" and #value > 0 and #value < 108 -- sun_path
  end,
  owner = function(value)
    return type(value) == "number" and value >= 0 and value % 1 == 0
  end,
  deadline = function(value)
    return type(value) == "number" and value > 0 and value <= 1
  end,
  failures = function(value)
    return type(value) == "number" and value >= 1
  end,
  pause = function(value)
    return type(value) == "number" and value >= 0.1
  end,
}

-- Change the defaults: { socket = path, owner = uid, deadline = seconds, failures = n, pause = seconds }. Never raises:
-- a job_submit.lua that cannot be loaded keeps slurmctld from starting.
function M.setup(options)
  for name, value in pairs(type(options) == "table" and options or {}) do
    if OPTIONS[name] and OPTIONS[name](value) then
      config[name] = value
    else
      log("error", "setup: " .. tostring(name) .. " is left as it was: no such option, or not a value for it")
    end
  end
  return M
end

return M
