-- cli_filter.lua: advice at the client, for what job_submit can neither see nor change.
--
-- Belongs beside slurm.conf on the login nodes, with CliFilterPlugins=cli_filter/lua. Runs in the user's own sbatch,
-- salloc and srun. It asks nobody, changes no option and never stops a submission: each piece of advice is a line on
-- stderr, once, for jobs that ask for GPUs. --quiet hides it; so does --comment=gsub:off.

-- What sbatch reports of an option that was not given differs by option and by release.
local UNSET = { [""] = true, unset = true, Unknown = true, ["invalid-context"] = true, ["-2"] = true }

local function given(value)
  return type(value) == "string" and not UNSET[value] and value or nil
end

local function wants_gpu(options)
  for _, name in ipairs({ "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu" }) do
    if given(options[name]) then
      return true
    end
  end
  for _, name in ipairs({ "gres", "tres-per-task" }) do
    if string.find(given(options[name]) or "", "gpu", 1, true) then
      return true
    end
  end
  return false
end

-- Whether sbatch --export=... carries a variable of the caller's: ALL and nothing said do, NONE and NIL do not.
local function exported(list, name)
  list = given(list)
  if not list then
    return true
  end
  for item in string.gmatch(list, "[^,]+") do
    if item == "ALL" or item == name or string.sub(item, 1, #name + 1) == name .. "=" then
      return true
    end
  end
  return false
end

-- The wishes that gsub reads from the job's environment, and how each is said as a word of the comment.
local WISHES = {
  { "GSUB", "gsub:" }, { "GSUB_REPACK", "gsub:repack=" }, { "GSUB_RETUNE", "gsub:retune=" },
  { "GSUB_SENSITIVITY", "gsub:sensitivity=" },
}

-- Each looks at the options and returns its advice, or nil. The first is told even to those who want gsub off.
local ADVICE = {
  function(options)
    for _, wish in ipairs(WISHES) do
      local name, value = wish[1], os.getenv(wish[1])
      local why = options.type ~= "sbatch" and tostring(options.type) .. " does not send its environment"
        or not exported(options.export, name) and "--export leaves it out"
      if value and why and not string.find(given(options.comment) or "", wish[2], 1, true) then
        return name .. " is not seen: " .. why .. "; say --comment=" .. wish[2] .. value .. " instead"
      end
    end
  end,
  function(options)
    if given(options.deadline) then
      return "--deadline is not seen by gsub, which may let the job wait for nodes that are close together; "
        .. "--switches=COUNT@TIME says how long at most"
    end
  end,
  function(options)
    if options.type == "sbatch" and given(options.requeue) == "requeue" and not given(options["open-mode"]) then
      return "--requeue: a second run writes over the output of the first, unless you say --open-mode=append"
    end
  end,
}

local told = {}

local function advise(options)
  -- srun inside a job starts a step: nothing is decided about it any more
  local step = options.type == "srun" and os.getenv("SLURM_JOB_ID")
  if step or string.find(string.lower(given(options.comment) or ""), "gsub:off", 1, true) or not wants_gpu(options) then
    return
  end
  local off = string.lower(os.getenv("GSUB") or "") == "off"
  for index, rule in ipairs(ADVICE) do
    local line = (index == 1 or not off) and rule(options)
    if line and not told[line] then -- the parts of a heterogeneous job share one process
      told[line] = true
      slurm.log_info("%s", "gsub: " .. string.gsub(string.sub(line, 1, 300), "[%c\127-\255]", "?"))
    end
  end
end

function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  pcall(advise, options)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end

return slurm.SUCCESS
