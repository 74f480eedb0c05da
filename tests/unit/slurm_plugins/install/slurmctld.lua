-- A slurmctld as far as a job_submit.lua sees one: loads it, asks for the two functions, calls them with jobs, and prints
-- what came of it. luaX.Y slurmctld.lua JOB_SUBMIT.LUA

local pcall, tonumber, tostring, ipairs, select, loadfile, print = pcall, tonumber, tostring, ipairs, select, loadfile, print

local function say(name, ...)
  local parts = {}
  for index = 1, select("#", ...) do
    parts[index] = string.gsub(tostring((select(index, ...))), "\n", "|")
  end
  print(name .. " " .. table.concat(parts, " "))
end

slurm = { SUCCESS = 0, ERROR = -1, FAILURE = -1, NO_VAL = 0xfffffffe }
for _, level in ipairs({ "error", "info", "verbose", "debug", "user" }) do
  slurm["log_" .. level] = function(format, ...)
    say(level, string.format(format, ...))
  end
end

local path = arg[1]
arg = nil
local chunk, why = loadfile(path)
if not chunk then
  return say("cannot load", why)
end
local fine, rc = pcall(chunk)
if not fine then
  return say("load raised", rc)
elseif (tonumber(rc) or 0) ~= 0 then
  return say("load returned", rc)
end
local submit, modify = _G.slurm_job_submit, _G.slurm_job_modify
if submit == nil or modify == nil then
  return say("missing", submit == nil and "slurm_job_submit" or "slurm_job_modify")
end
say("hook", (debug.gethook()))
for _, comment in ipairs({ "plain", "reject", "raise", "again" }) do
  local job = { comment = comment, user_id = 1000, partition = "gpu" }
  local results = { pcall(_G.slurm_job_submit, job, { gpu = {} }, 1000) }
  say("submit", comment, results[1], results[2], job.partition, job.name, job.asked)
end
local job = { comment = "plain" }
say("modify", pcall(modify, job, {}, { gpu = {} }, 1000))
say("modified", job.partition, job.asked)
