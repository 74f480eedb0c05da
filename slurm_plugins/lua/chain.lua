-- chain.lua: puts gsub behind a site's own slurm_job_submit and before its slurm_job_modify, and leaves the site's job_submit.lua as it is.
--
-- The marked line at the top of job_submit.lua loads this file and calls what it returns, with the shim's settings. It
-- loads the shim, lets the site's script run as it would without us, and when the script has ended puts a function in
-- the place of slurm_job_submit that calls the site's and then gsub. Whatever fails on the way is raised before
-- anything was changed, or leaves the site's function in its place: a site's rules never depend on gsub.
-- Lua 5.1 to 5.4.

-- What the site's script may replace while it is loaded.
local assert, dofile, next, pcall, rawset, tonumber, tostring, type =
  assert, dofile, next, pcall, rawset, tonumber, tostring, type
local getinfo, sethook, getmetatable = debug.getinfo, debug.sethook, debug.getmetatable
local gsub, match, G = string.gsub, string.match, _G
local log_info, log_error = slurm.log_info, slurm.log_error

local folder = match(getinfo(1, "S").source, "^@(.*/)") or ""
-- From 5.2 on a function can be asked whether it was reached by a tail call; 5.1 shows the lost call as a level.
local TAIL = pcall(getinfo, 1, "t") and "t" or ""

-- The names in a table, and what takes those out again that came since.
local function as_it_was(all)
  local before = {}
  for name in next, all do
    before[name] = true
  end
  return function()
    for name in next, all do
      if not before[name] then
        rawset(all, name, nil)
      end
    end
  end
end

-- The shim. Modules that it loads are forgotten again, and so are globals that they made: the site's script finds Lua as
-- it would without us.
local function load_shim(settings)
  local forget_modules, forget_globals = as_it_was(package.loaded), as_it_was(G)
  local fine, shim = pcall(dofile, folder .. "gsub.lua")
  forget_modules()
  forget_globals()
  assert(fine, shim)
  assert(type(shim) == "table" and type(shim.submit) == "function" and type(shim.modify) == "function",
    "gsub.lua is cut short")
  return shim.setup(settings)
end

-- Whether Slurm goes on with a job for which the site's function returned `rc`: what is no number counts as success,
-- a number is cut to an integer.
local function goes_on(rc)
  local number = tonumber(rc)
  return number == nil or number > -1 and number < 1
end

-- Whether the function that asks was called by the site's own Lua, from slurm_job_modify for instance, not by Slurm.
local function called_by_lua()
  if TAIL ~= "" and getinfo(2, TAIL).istailcall then
    return true
  end
  local caller = getinfo(3, "S")
  return caller ~= nil and caller.what ~= "C"
end

local function chain(site, shim)
  local submit = shim.submit

  local function behind(asked, job_desc, part_list, submit_uid, ...)
    if asked and goes_on((...)) then
      local fine, rc = pcall(submit, job_desc, part_list, submit_uid)
      if fine and not goes_on(rc) then
        return rc
      end
    end
    return ...
  end

  return function(job_desc, part_list, submit_uid, ...)
    local asked = not called_by_lua()
    -- Not in a pcall: an error of the site's function means to Slurm what it meant before.
    return behind(asked, job_desc, part_list, submit_uid, site(job_desc, part_list, submit_uid, ...))
  end
end

-- gsub first: a change that it refuses is none of the site's.
local function guard(site, shim)
  local modify = shim.modify
  return function(job_desc, job_rec, part_list, modify_uid, ...)
    local fine, rc = pcall(modify, job_desc, job_rec, part_list, modify_uid)
    if fine and not goes_on(rc) then
      return rc
    end
    return site(job_desc, job_rec, part_list, modify_uid, ...)
  end
end

local function callable(value)
  local meta = type(value) ~= "function" and getmetatable(value)
  return type(value) == "function" or meta and type(meta.__call) == "function"
end

-- The script has ended: whatever it made of slurm_job_submit is what is chained, however it came there.
local function settle(shim)
  local site = G.slurm_job_submit
  if not callable(site) then
    return -- Slurm says so, as it would without us
  end
  rawset(G, "slurm_job_submit", chain(site, shim))
  local modify = G.slurm_job_modify
  if callable(modify) then
    rawset(G, "slurm_job_modify", guard(modify, shim))
  end
  log_info("%s", "gsub: asked after the site's own slurm_job_submit")
end

-- The main function of job_submit.lua, from within what it called.
local function main_function()
  for level = 2, 50 do
    local frame = getinfo(level, "Sf")
    if not frame then
      return nil
    elseif frame.what == "main" then
      return frame.func
    end
  end
end

local function on_the_stack(func)
  for level = 3, 1000 do
    local frame = getinfo(level, "f")
    if not frame then
      return false
    elseif frame.func == func then
      return true
    end
  end
  return true
end

-- Call `done` when `main` returns, or what it called last in its place.
local function at_the_end_of(main, done)
  sethook(function(event)
    local frame = getinfo(2, TAIL .. "f")
    local over = frame and frame.func == main
    if not over and (event == "tail return" or frame and frame.istailcall) then
      over = not on_the_stack(main)
    end
    if over then
      sethook()
      -- An error here would be one of the script's.
      local fine, why = pcall(done)
      if not fine then
        pcall(log_error, "%s", "gsub is left out: " .. gsub(tostring(why), "%s+", " "))
      end
    end
  end, "r")
end

return function(settings)
  local shim = load_shim(settings)
  local main = assert(main_function(), "job_submit.lua is not on the stack")
  at_the_end_of(main, function()
    settle(shim)
  end)
end
