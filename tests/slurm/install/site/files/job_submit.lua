--[[
  job_submit.lua of the development cluster

  Runs in slurmctld for every submission and every change of a job. Keep it short, keep it fast, and TEST IT: a file
  that cannot be loaded keeps slurmctld from starting.

  2019-03  first version: partition by GPUs
  2020-11  no more jobs without an account, after the audit
  2021-06  time limits by QOS
  2022-02  hints to those who ask for the whole node and use one GPU
  2023-09  slurm_job_modify: nobody moves into urgent by hand
]]

-- What may be changed without thinking ------------------------------------------------------------------------------

SITE_NAME = "Development cluster"
HELP_AT = "help@hpc.example.org"

MAX_GPUS_A_JOB = 32
CPUS_A_GPU = 16
DEFAULT_FEATURE = "a100"

-- minutes; `default` for who states no time limit
QOS_LIMITS = {
  normal = { most = 7 * 24 * 60, default = 60 },
  short = { most = 10, default = 5 },
  long = { most = 14 * 24 * 60, default = 24 * 60 },
}
INTERACTIVE_MINUTES = 8 * 60

-- partition -> may users name it themselves?
PARTITIONS = { gpu = true, cpu = true, debug = true, urgent = false }
ON_CALL = { root = true, slurm = true }

-- Slurm's own numbers, so that users read something better than "Unspecified error"
local ESLURM_INVALID_PARTITION_NAME = 2000
local ESLURM_ACCESS_DENIED = 2002
local ESLURM_INVALID_GRES = 2072
local ESLURM_INVALID_ACCOUNT = 2045

-- Helpers ------------------------------------------------------------------------------------------------------------

seen = seen or 0
refused = {}

local function say(text, ...)
  slurm.log_user("site: " .. text, ...)
end

local function note(text, ...)
  slurm.log_info("job_submit.lua: " .. text, ...)
end

-- A number of job_desc, or nil where the user left it open. Slurm has three ways to say "not set".
local function stated(value)
  if value == nil or value == slurm.NO_VAL or value == slurm.NO_VAL16 or value == slurm.NO_VAL64 then
    return nil
  end
  return value
end

-- "gres:gpu:2" of 22.05, "gres/gpu:2" of later ones, "gres:gpu:a100:2", "gpu=2", "gpu"
function gpus_in(text)
  local sum = 0
  if text == nil then
    return 0
  end
  for item in string.gmatch(text, "[^,]+") do
    local name = string.gsub(item, "^gres[:/]", "")
    if string.match(name, "^gpu") then
      sum = sum + tonumber(string.match(name, "[:=](%d+)$") or "1")
    end
  end
  return sum
end

-- How many GPUs a job asks for in all
function gpus_of(job_desc)
  local nodes = stated(job_desc.min_nodes) or 1
  local tasks = stated(job_desc.num_tasks) or 1
  local in_all = gpus_in(job_desc.tres_per_job)
  in_all = math.max(in_all, gpus_in(job_desc.tres_per_node) * nodes)
  return math.max(in_all, gpus_in(job_desc.tres_per_task) * tasks)
end

local function refuse(job_desc, code, text, ...)
  local user = job_desc.user_name or "?"
  refused[user] = (refused[user] or 0) + 1
  note("refused a job of %s, the %dth", user, refused[user])
  say(text, ...)
  say("Questions? %s", HELP_AT)
  return code
end

local function is_interactive(job_desc)
  return job_desc.script == nil or job_desc.script == ""
end

-- Rules: each returns nil, or the code with which the job is refused -------------------------------------------------

local function want_account(job_desc)
  if job_desc.account == nil or job_desc.account == "" then
    return refuse(job_desc, ESLURM_INVALID_ACCOUNT, "every job needs an account: add -A ACCOUNT (yours: sacctmgr show assoc)")
  end
end

local function pick_partition(job_desc, part_list)
  local gpus = gpus_of(job_desc)
  if job_desc.partition == nil then
    local wanted = gpus > 0 and "gpu" or "cpu"
    for name in pairs(part_list) do
      if name == wanted then
        job_desc.partition = wanted
      end
    end
    return
  end
  for name in string.gmatch(job_desc.partition, "[^,]+") do
    if PARTITIONS[name] == false and not ON_CALL[job_desc.user_name or "?"] then
      return refuse(job_desc, ESLURM_ACCESS_DENIED, "partition %s is for those on call", name)
    end
    if name == "cpu" and gpus > 0 then
      return refuse(job_desc, ESLURM_INVALID_PARTITION_NAME, "partition cpu has no GPUs, and the job asks for %d", gpus)
    end
  end
end

local function limit_gpus(job_desc)
  local gpus = gpus_of(job_desc)
  if gpus > MAX_GPUS_A_JOB then
    return refuse(job_desc, ESLURM_INVALID_GRES, "%d GPUs are more than the %d that one job may have", gpus, MAX_GPUS_A_JOB)
  end
  if gpus > 0 and job_desc.features == nil and job_desc.partition == "gpu" then
    job_desc.features = DEFAULT_FEATURE
  end
  local cpus = stated(job_desc.min_cpus)
  if gpus > 0 and cpus ~= nil and cpus > CPUS_A_GPU * gpus then
    say("%d CPUs for %d GPU(s): others could use the GPUs that you leave without CPUs", cpus, gpus)
  end
end

local function limit_time(job_desc)
  local rule = QOS_LIMITS[job_desc.qos or "normal"]
  if rule == nil then
    return -- slurmctld knows whether there is such a QOS
  end
  local most = rule.most
  if is_interactive(job_desc) then
    most = math.min(most, INTERACTIVE_MINUTES)
  end
  local minutes = stated(job_desc.time_limit)
  if minutes == nil then
    job_desc.time_limit = math.min(rule.default, most)
  elseif minutes > most then
    say("the time limit is cut to %d minutes, the most in QOS %s", most, job_desc.qos or "normal")
    job_desc.time_limit = most
  end
end

RULES = { want_account, pick_partition, limit_gpus, limit_time }

-- What Slurm calls ---------------------------------------------------------------------------------------------------

function slurm_job_submit(job_desc, part_list, submit_uid)
  seen = seen + 1
  for _, rule in ipairs(RULES) do
    local code = rule(job_desc, part_list)
    if code ~= nil then
      return code
    end
  end
  if seen % 100 == 0 then
    note("%d submissions since the file was loaded", seen)
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  if modify_uid == 0 then
    return slurm.SUCCESS
  end
  if job_desc.partition ~= nil and PARTITIONS[job_desc.partition] == false then
    say("partition %s is for those on call", job_desc.partition)
    return ESLURM_ACCESS_DENIED
  end
  local minutes = stated(job_desc.time_limit)
  local rule = QOS_LIMITS[job_rec.qos or "normal"]
  if minutes ~= nil and rule ~= nil and minutes > rule.most then
    say("at most %d minutes in QOS %s", rule.most, job_rec.qos or "normal")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

note("loaded for %s", SITE_NAME)
return slurm.SUCCESS
